/* The two kinds of 16-bit numbers that are multiplied: bf16, and float16 where rows come from an fp8 pool, whose every
 * number it holds. Q and P are of the kind of what they are multiplied by; draft tokens' keys and values are bf16 always.
 */
#pragma once

#include "ptx.cuh"

namespace kdtree {

/* Weights are relative to a maximum of which O is in units. kSlack: how far, in base 2, a score may exceed it before it
 * is moved and O rescaled; kBelow: how far it is moved below the greatest score then. Weights of bf16 are at most 2^8:
 * O is finite while (keys) * (largest |value|) * 2^8 < 2^128. Those of float16 are at most 2^15, which it holds, with all
 * its bits down to 2^-21 of the greatest and some down to 2^-32; values of fp8 then keep O finite. */
struct Bf16 {
  static constexpr float kSlack = 8.f, kBelow = 0.f;
  __device__ __forceinline__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_bf16(c, a, b0, b1);
  }
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  __device__ __forceinline__ static float2 unpack(uint32_t pair) { return unpack_bf16(pair); }
};

struct F16 {
  static constexpr float kSlack = 15.f, kBelow = 7.f;
  __device__ __forceinline__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_f16(c, a, b0, b1);
  }
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return pack_f16(low, high); }
  __device__ __forceinline__ static float2 unpack(uint32_t pair) { return unpack_f16(pair); }
};

}  // namespace kdtree

/* The two kinds of 16-bit numbers that are multiplied: bf16, and float16 where rows come from an fp8 pool, whose every
 * number it holds. Q and P are of the kind of what they are multiplied by; draft tokens' keys and values are bf16 always.
 */
#pragma once

#include "ptx.cuh"

namespace kdtree {

struct Bf16 {
  __device__ __forceinline__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_bf16(c, a, b0, b1);
  }
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  __device__ __forceinline__ static float2 unpack(uint32_t pair) { return unpack_bf16(pair); }
};

struct F16 {
  __device__ __forceinline__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_f16(c, a, b0, b1);
  }
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return pack_f16(low, high); }
  __device__ __forceinline__ static float2 unpack(uint32_t pair) { return unpack_f16(pair); }
};

}  // namespace kdtree

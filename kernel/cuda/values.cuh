/* O += P V of one stage. Warp w holds columns 64w .. 64w+63 of O for all 64 rows, in float32 registers. */
#pragma once

#include "scores.cuh"

namespace kdtree {

class Output {
 public:
  /* o_[m][n][..]: rows 16m + g and 16m + g + 8, columns 64 warp + 8n + 2i and the next (g = lane / 4, i = lane % 4). */
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o_[m][n][e] = 0.f;
  }

  __device__ __forceinline__ void rescale(const unsigned char* shared) {
    const float* const alpha = reinterpret_cast<const float*>(shared + Shared::kAlpha) + this_thread().lane / 4;
#pragma unroll
    for (int octet = 0; octet < 8; ++octet) {
      const float factor = alpha[octet * 8];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        o_[octet / 2][n][octet % 2 * 2] *= factor;
        o_[octet / 2][n][octet % 2 * 2 + 1] *= factor;
      }
    }
  }

  __device__ __forceinline__ void add(const unsigned char* stage, const unsigned char* shared) {
    const auto [lane, warp] = this_thread();
    const uint32_t probs = shared_address(shared) + Shared::kInboxes + prob_offset(lane % 16) + lane / 16 * 16;
    const uint32_t values = shared_address(stage) + lane % 16 * kKeyPitch + (warp * kWarpCols + lane / 16 * 8) * 2;
#pragma unroll
    for (int k = 0; k < 2; ++k) {  // 16 keys at a time
      uint32_t p[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) load_matrices(p[m], probs + prob_offset(16 * m) + k * 32);
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        uint32_t v[4];
        load_matrices_transposed(v, values + k * 16 * kKeyPitch + n * 16);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          mma(o_[m][n], p[m], v[0], v[1]);
          mma(o_[m][n + 1], p[m], v[2], v[3]);
        }
      }
    }
  }

  /* A draft token's NaN or Inf belongs to the rows that see the token, while the product would spread it to all of the
   * tile by 0 * NaN. Where this warp's columns hold one, it is added here to the rows that see it, and made zero. */
  __device__ __forceinline__ void take_nonfinite(unsigned char* stage, const unsigned char* shared) {
    const auto [lane, warp] = this_thread();
    unsigned char* const strip = stage + warp * kWarpCols * 2;
    bool found = false;
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key)
      found |= nonfinite(*reinterpret_cast<const uint32_t*>(strip + key * kKeyPitch + lane * 4));
    if (!__any_sync(~0u, found)) return;

#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      const unsigned char* const prob = shared + Shared::kInboxes + key * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(strip + key * kKeyPitch + n * 16 + lane % 4 * 4);
        if (!nonfinite(pair)) continue;
#pragma unroll
        for (int octet = 0; octet < 8; ++octet) {
          const float p = bf16(*reinterpret_cast<const uint16_t*>(prob + prob_offset(octet * 8 + lane / 4)));
          if (p == 0.f) continue;
          if (nonfinite_low(pair)) o_[octet / 2][n][octet % 2 * 2] += p * bf16(pair & 0xffff);
          if (nonfinite_high(pair)) o_[octet / 2][n][octet % 2 * 2 + 1] += p * bf16(pair >> 16);
        }
      }
      __syncwarp();
      uint32_t& mine = *reinterpret_cast<uint32_t*>(strip + key * kKeyPitch + lane * 4);
      mine &= (nonfinite_low(mine) ? 0u : 0xffffu) | (nonfinite_high(mine) ? 0u : 0xffff0000u);
    }
    __syncwarp();
  }

  /* Calls store(row, column, low, high) for every pair of this thread's elements. */
  template <typename Store>
  __device__ __forceinline__ void for_each_row(Store store) const {
    const auto [lane, warp] = this_thread();
#pragma unroll
    for (int octet = 0; octet < 8; ++octet) {
      float pairs[8][2];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        pairs[n][0] = o_[octet / 2][n][octet % 2 * 2];
        pairs[n][1] = o_[octet / 2][n][octet % 2 * 2 + 1];
      }
      store(octet * 8 + lane / 4, warp * kWarpCols + lane % 4 * 2, pairs);
    }
  }

 private:
  __device__ __forceinline__ static bool nonfinite_low(uint32_t pair) { return (pair & 0x7f80u) == 0x7f80u; }
  __device__ __forceinline__ static bool nonfinite_high(uint32_t pair) { return (pair & 0x7f800000u) == 0x7f800000u; }
  __device__ __forceinline__ static bool nonfinite(uint32_t pair) {
    return nonfinite_low(pair) || nonfinite_high(pair);
  }
  __device__ __forceinline__ static float bf16(uint32_t bits) { return __uint_as_float(bits << 16); }

  float o_[4][8][4];
};

}  // namespace kdtree

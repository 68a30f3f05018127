/* O += P V of one stage. Warp w of a group holds columns 128w .. 128w+127 of O for its group's 32 rows, in float32. */
#pragma once

#include "scores.cuh"

namespace kdtree {

class Output {
 public:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o_[m][n][e] = 0.f;
  }

  /* By the factors that the softmax left. */
  __device__ __forceinline__ void rescale(const unsigned char* shared, const Seat& me) {
    const float* const factors =
        reinterpret_cast<const float*>(shared + Shared::kRowFactor) + me.group() * kGroupRows + me.lane() / 4;
    float factor[4];
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) factor[octet] = factors[octet * 8];
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        o_[octet / 2][n][octet % 2 * 2] *= factor[octet];
        o_[octet / 2][n][octet % 2 * 2 + 1] *= factor[octet];
      }
    }
  }

  /* V of a stage as mma's B operand, fetched kAhead fragments of 16 keys x 16 columns before their turn: the first ones
   * may be fetched before P is there. */
  class Values {
   public:
    __device__ __forceinline__ void begin(uint32_t stage, const Seat& me) {
      from_ = stage + me.lane() % 16 * kKeyPitch + (me.warp() * kWarpCols + me.lane() / 16 * 8) * 2;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) fetch(i);
    }
    /* Fragment i, for i one after the other. */
    __device__ __forceinline__ const uint32_t (&next(int i))[4] {
      if (i + kAhead < kFragments) fetch(i + kAhead);
      return v_[i % (kAhead + 1)];
    }

   private:
    static constexpr int kAhead = 2, kFragments = 2 * kWarpCols / 16;
    __device__ __forceinline__ void fetch(int i) {
      load_matrices_transposed(v_[i % (kAhead + 1)],
                               from_ + i / (kFragments / 2) * 16 * kKeyPitch + i % (kFragments / 2) * 32);
    }
    uint32_t from_;
    uint32_t v_[kAhead + 1][4];
  };

  template <typename Number>
  __device__ __forceinline__ void add(Values& values, const Seat& me, uint32_t shared) {
    const uint32_t lane = me.lane();
    const uint32_t probs = shared + me.outbox(0) + prob_offset(lane % 16) + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < 2; ++k) {  // 16 keys at a time
      uint32_t p[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) load_matrices(p[m], probs + (prob_offset(16 * m) - prob_offset(0)) + k * 32);
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        const auto& v = values.next(k * (kColumnTiles / 2) + n / 2);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Number::mma(o_[m][n], p[m], v[0], v[1]);
          Number::mma(o_[m][n + 1], p[m], v[2], v[3]);
        }
      }
    }
  }

  /* The same where a draft token's value is NaN or Inf: it belongs to the rows that see the token, while the matrix
   * product would spread it to all of the tile by 0 * NaN. */
  __device__ __forceinline__ void add_seen_only(const unsigned char* stage, const unsigned char* shared,
                                                const Seat& me) {
    const uint32_t lane = me.lane();
    const unsigned char* const probs = anew(shared + me.outbox(0));
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      const unsigned char* const value = stage + key * kKeyPitch + (me.warp() * kWarpCols + lane % 4 * 2) * 2;
      float p[4];
#pragma unroll
      for (int octet = 0; octet < 4; ++octet)
        p[octet] = bf16(*reinterpret_cast<const uint16_t*>(probs + prob_offset(octet * 8 + lane / 4) + key * 2));
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(value + n * 16);
#pragma unroll
        for (int octet = 0; octet < 4; ++octet) {
          if (__float_as_uint(p[octet]) == 0x80000000u) continue;  // -0: not seen; +0 may be, and 0 * NaN is NaN
          o_[octet / 2][n][octet % 2 * 2] += p[octet] * bf16(pair & 0xffff);
          o_[octet / 2][n][octet % 2 * 2 + 1] += p[octet] * bf16(pair >> 16);
        }
      }
    }
  }

  static constexpr int kColumnTiles = kWarpCols / 8;
  static constexpr int kRowParts = 4;  // rows that a thread has a part of, lane / 4 of each of its group's octets

  /* Element e (0 or 1) of column tile n of this thread's part of octet `octet`: column 8n + 2 (lane % 4) + e. */
  __device__ __forceinline__ float at(int octet, int n, int e) const { return o_[octet / 2][n][octet % 2 * 2 + e]; }

 private:
  __device__ __forceinline__ static float bf16(uint32_t bits) { return __uint_as_float(bits << 16); }

  /* o_[m][n][..]: rows 16m + g and 16m + g + 8 of the group's, columns 8n + 2i and the next of the warp's
   * (g = lane / 4, i = lane % 4). */
  float o_[2][kColumnTiles][4];
};

}  // namespace kdtree

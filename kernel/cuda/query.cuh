/* A warp's part of Q, in registers, as mma's A operand. */
#pragma once

#include "barriers.cuh"
#include "range.cuh"
#include "seat.cuh"

namespace kdtree {

/* Two 16-row blocks by 9 steps of 16 columns. Its octets begin with the one that the warp owns: octet o here is octet
 * (warp + o) % 4 of the group's rows.
 *
 * For an fp8 pool's keys it is float16, of which each row is scaled by a power of two, its largest element to between
 * 2^14 and 2^15 (rows of less than 2^-112 stay smaller). Elements of 2^-31 of that and more are exact, others off by 2^-39
 * of it at most. */
template <bool f16>
struct QueryFragment {
  uint32_t a[2][kSliceSteps][4];

  /* From `q`, where row_of(row) is one of the group's rows. A quad reads a row's slice in pieces of 16 bytes, all of
   * them at once (past the slice its last one again), and calls `meanwhile`; they pass through the warp's outbox, 16
   * rows and two pieces of a lane at a time, to lie as mma wants them. `scale` goes with the scores: as float16, S is in
   * other units in each row, and what to multiply it by is left in shared memory. */
  template <typename RowOf, typename Meanwhile>
  __device__ __forceinline__ void load(RowOf row_of, float scale, const Seat& me, unsigned char* shared,
                                       Meanwhile meanwhile) {
    const int lane = me.lane();
    uint4 piece[kGroupWarps][kPieces];
#pragma unroll
    for (int octet = 0; octet < kGroupWarps; ++octet) {
      const uint4* const slice = reinterpret_cast<const uint4*>(
          row_of((me.warp() + octet) % kGroupWarps * kOwnedRows + lane / 4) + me.warp() * kSliceDim);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) piece[octet][i] = __ldg(slice + min(4 * i + lane % 4, kSliceDim / 8 - 1));
    }
    meanwhile();
    if constexpr (f16) narrow(piece, scale, me, shared);
    const uint32_t outbox = shared_address(shared) + me.outbox(me.warp());
    const uint32_t to = outbox + pass_offset(lane / 4, lane % 4), from = outbox + pass_offset(lane % 16, lane / 16);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int first = 0; first < kPieces; first += 2) {
        __syncwarp();
#pragma unroll
        for (int octet = 0; octet < 2; ++octet) {
#pragma unroll
          for (int i = first; i < min(first + 2, kPieces); ++i) {
            const uint4& p = piece[2 * m + octet][i];
            store_shared((to ^ (i - first) * 64) + octet * kOwnedRows * kPassPitch, p.x, p.y, p.z, p.w);
          }
        }
        __syncwarp();
#pragma unroll
        for (int step = 2 * first; step < min(2 * first + 4, kSliceSteps); ++step)
          load_matrices(a[m][step], from ^ (step - 2 * first) * 32);
      }
    }
    __syncwarp();  // before messages take the place
  }

  /* As bf16, for keys of draft tokens; scaled still to below 2^15, so that keys of 2^103 and more may make S, a sum of
   * 576 products, infinite. */
  __device__ __forceinline__ QueryFragment<false> as_bf16() const {
    QueryFragment<false> other;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int step = 0; step < kSliceSteps; ++step) {
        auto& words = other.a[m][step];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack_f16(a[m][step][i]);
          words[i] = pack_bf16(pair.x, pair.y);
        }
      }
    }
    return other;
  }

 private:
  static constexpr int kPieces = (kSliceDim / 8 + 3) / 4;  // of a lane; each two of a quad's are four steps
  static constexpr int kPassPitch = 8 * 16;
  static constexpr int kPassBytes = 2 * kOwnedRows * kPassPitch;
  static_assert(kPassBytes <= kOutboxBytes);
  static_assert(Shared::kOutboxes % kPassPitch == 0 && kOutboxBytes % kPassPitch == 0, "offsets are combined by xor");

  /* Where piece `piece` of 8 of a row passes. Both the quads' pieces of two rows, which are stored together, and one
   * piece of eight rows, which are loaded together, lie in different banks. */
  __device__ __forceinline__ static uint32_t pass_offset(uint32_t row, uint32_t piece) {
    return row * kPassPitch + (piece ^ row % 2 * 4 ^ row / 2 % 4) * 16;
  }

  /* Turns bf16 into scaled float16. The group's warps tell each other the largest elements of their rows' slices, behind
   * what passes through their outboxes. */
  __device__ __forceinline__ static void narrow(uint4 (&piece)[kGroupWarps][kPieces], float scale, const Seat& me,
                                                unsigned char* shared) {
    static_assert(kPassBytes + kGroupRows * 4 <= kOutboxBytes);
    const int lane = me.lane();
    const auto largest = [&](int warp, int octet) -> float& {
      return reinterpret_cast<float*>(shared + me.outbox(warp) +
                                      kPassBytes)[(me.warp() + octet) % kGroupWarps * kOwnedRows + lane / 4];
    };
#pragma unroll
    for (int octet = 0; octet < kGroupWarps; ++octet) {
      uint32_t bits = 0;  // of magnitudes: as integers they are in the numbers' order
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const uint4& p = piece[octet][i];
        bits = max(max(max(bits, magnitude(p.x)), max(magnitude(p.y), magnitude(p.z))), magnitude(p.w));
      }
      bits = max(bits, __shfl_xor_sync(~0u, bits, 1));
      bits = max(bits, __shfl_xor_sync(~0u, bits, 2));
      if (lane % 4 == 0) largest(me.warp(), octet) = __uint_as_float(bits);
    }
    barrier_sync(kGroupBarrier + me.group(), kGroupThreads);
#pragma unroll
    for (int octet = 0; octet < kGroupWarps; ++octet) {
      uint32_t bits = 0;
#pragma unroll
      for (int warp = 0; warp < kGroupWarps; ++warp) bits = max(bits, __float_as_uint(largest(warp, octet)));
      const float power = power_above(__uint_as_float(bits)), factor = reciprocal_of_power(power);
      if (octet == 0 && lane % 4 == 0)  // the warp's own rows: nobody else reads it
        reinterpret_cast<float*>(shared + Shared::kQueryScale)[me.row()] = scale * power;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        uint4& p = piece[octet][i];
        p = make_uint4(scaled(p.x, factor), scaled(p.y, factor), scaled(p.z, factor), scaled(p.w, factor));
      }
    }
  }

  /* Of the larger of two, in float32's bits. */
  __device__ __forceinline__ static uint32_t magnitude(uint32_t pair) {
    return max(pair << 16 & 0x7fffffffu, pair & 0x7fff0000u);
  }
  __device__ __forceinline__ static uint32_t scaled(uint32_t pair, float factor) {
    const float2 both = unpack_bf16(pair);
    return pack_f16(both.x * factor, both.y * factor);
  }
};

}  // namespace kdtree

/* Sums over the lanes of a warp, and exchanges between them. */
#pragma once

#include "ptx.cuh"

namespace kdtree {

/* The sum of `value` over the lanes up to this one, itself included. */
template <typename T>
__device__ __forceinline__ T warp_prefix_sum(T value) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const T other = __shfl_up_sync(~0u, value, distance);
    if (threadIdx.x % 32 >= distance) value += other;
  }
  return value;
}

/* The sum over all lanes of numbers from 0 to 2^53. */
__device__ __forceinline__ int64_t warp_sum(int64_t value) {
  const unsigned low = __reduce_add_sync(~0u, static_cast<unsigned>(value & 0x3ffffff));
  const unsigned high = __reduce_add_sync(~0u, static_cast<unsigned>(value >> 26));
  return (int64_t{high} << 26) + low;
}

/* combine over all lanes, for every lane; in one order, whatever the values. */
template <typename T, typename Combine>
__device__ __forceinline__ T warp_all(T value, Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2) value = combine(value, __shfl_xor_sync(~0u, value, distance));
  return value;
}

/* Among the four lanes of each quad: word i of lane j becomes word j of lane i. */
__device__ __forceinline__ void transpose_quads(uint32_t (&word)[4]) {
  const uint32_t lane = lane_id();
  const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? word[i] : word[i + 1], 1);
    (odd ? word[i] : word[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, upper ? word[i] : word[i + 2], 2);
    (upper ? word[i] : word[i + 2]) = other;
  }
}

}  // namespace kdtree

/* Sums over the lanes of a warp. */
#pragma once

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

/* combine over all lanes, for every lane; in one order, whatever the values. */
template <typename T, typename Combine>
__device__ __forceinline__ T warp_all(T value, Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2) value = combine(value, __shfl_xor_sync(~0u, value, distance));
  return value;
}

}  // namespace kdtree

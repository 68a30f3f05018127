/* Powers of two that bring float32 numbers into the range of float16. */
#pragma once

#include <stdint.h>

namespace kdtree {

/* A power of two by which numbers up to `largest` become less than 2^15; the largest at least 2^14, if it is 2^14 times the
 * least normal number or more. The power's reciprocal is a normal number as well. */
__device__ __forceinline__ float power_above(float largest) {
  const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23) - 14, 1);
  return __uint_as_float(static_cast<uint32_t>(min(exponent, 252)) << 23);
}

__device__ __forceinline__ float reciprocal_of_power(float power) {
  return __uint_as_float((254u << 23) - __float_as_uint(power));
}

}  // namespace kdtree

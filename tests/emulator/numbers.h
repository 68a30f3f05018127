/* Conversions between kinds of numbers, as the GPU's instructions round. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <cmath>

namespace emulator {

using std::signbit;

/* Subnormals are zeros of their sign (.ftz). */
inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.f, x) : x; }

inline uint32_t bf16_bits(float x) {
  if (x != x) return 0x7fff;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float bf16_value(uint32_t bits) {
  bits <<= 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* By hand: not every g++ has _Float16. */
inline uint32_t f16_bits(float x) {
  if (x != x) return 0x7fff;
  const float size = fabsf(x);
  const uint32_t sign = signbit(x) ? 0x8000 : 0;
  if (size >= 65520.f) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | static_cast<uint32_t>(nearbyintf(size * 0x1p24f));
  uint32_t bits;
  memcpy(&bits, &size, sizeof bits);
  return sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - ((127 - 15) << 10));
}

inline float f16_value(uint32_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  const float sign = (bits & 0x8000) != 0 ? -1.f : 1.f;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * ldexpf(static_cast<float>(mantissa), -24);
  return sign * ldexpf(static_cast<float>(mantissa + 1024), exponent - 25);
}

/* e4m3 has NaN and no Inf, e5m2 both. */
inline float fp8_value(int byte, bool e4m3) {
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, last_exponent = e4m3 ? 15 : 31;
  const int leading = 1 << mantissa_bits, mantissa = byte & (leading - 1);
  const int exponent = byte >> mantissa_bits & last_exponent;
  const float sign = (byte & 0x80) != 0 ? -1.f : 1.f;
  if (exponent == last_exponent) {
    if (!e4m3 && mantissa == 0) return sign * INFINITY;
    if (!e4m3 || mantissa == leading - 1) return NAN;
  }
  const int whole = exponent == 0 ? mantissa : mantissa + leading;
  return sign * ldexpf(static_cast<float>(whole), (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
}

}  // namespace emulator

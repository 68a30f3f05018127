#include "host/convert.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kdtree_verify.h"

namespace kdtree {
namespace {

constexpr float power_of_two(int exponent) {
  float value = 1;
  for (; exponent > 0; --exponent) value *= 2;
  for (; exponent < 0; ++exponent) value /= 2;
  return value;
}

// A byte of sign, exponent and mantissa. All ones in exponent and mantissa are NaN in both formats; e5m2 has
// infinities and more NaNs in its last exponent, where e4m3fn has numbers.
constexpr float float8_value(int byte, int mantissa_bits, bool ieee_specials) {
  const int exponent_bits = 7 - mantissa_bits;
  const int last_exponent = (1 << exponent_bits) - 1;
  const int last_mantissa = (1 << mantissa_bits) - 1;
  const int bias = last_exponent / 2;
  const int exponent = byte >> mantissa_bits & last_exponent;
  const int mantissa = byte & last_mantissa;
  const float sign = byte & 0x80 ? -1.0f : 1.0f;
  if (exponent == last_exponent) {
    if (ieee_specials && mantissa == 0) return sign * std::numeric_limits<float>::infinity();
    if (ieee_specials || mantissa == last_mantissa) return std::numeric_limits<float>::quiet_NaN();
  }
  const int implied = exponent == 0 ? 0 : 1 << mantissa_bits;
  const int shift = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits;
  return sign * static_cast<float>(implied + mantissa) * power_of_two(shift);
}

using Float8Table = std::array<float, 256>;

constexpr Float8Table float8_table(int mantissa_bits, bool ieee_specials) {
  Float8Table table = {};
  for (int byte = 0; byte < 256; ++byte) table[byte] = float8_value(byte, mantissa_bits, ieee_specials);
  return table;
}

constexpr Float8Table kE4M3 = float8_table(3, false);
constexpr Float8Table kE5M2 = float8_table(2, true);

float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T, typename Convert>
void load_as(const void* array, int64_t offset, int count, double scale, double* out, int step, Convert convert) {
  const T* from = static_cast<const T*>(array) + offset;
  for (int i = 0; i < count; ++i) out[i * step] = static_cast<double>(convert(from[i])) * scale;
}

// By way of a float rounded to odd, which keeps what a second rounding needs: the result is rounded once.
uint16_t to_bf16(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const float nearest = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  if (static_cast<double>(nearest) != value) {
    if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) bits -= 1;
    bits |= 1;
  }
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

void load_row(const void* array, int32_t dtype, int64_t offset, int count, double scale, double* out, int step) {
  switch (dtype) {
    case KDTREE_F32:
      return load_as<float>(array, offset, count, scale, out, step, [](float x) { return x; });
    case KDTREE_BF16:
      return load_as<uint16_t>(array, offset, count, scale, out, step,
                               [](uint16_t x) { return bits_to_float(uint32_t{x} << 16); });
    case KDTREE_F8_E4M3:
      return load_as<uint8_t>(array, offset, count, scale, out, step, [](uint8_t x) { return kE4M3[x]; });
    case KDTREE_F8_E5M2:
      return load_as<uint8_t>(array, offset, count, scale, out, step, [](uint8_t x) { return kE5M2[x]; });
  }
}

void store_row(const double* values, int count, void* array, int32_t dtype, int64_t offset) {
  if (dtype == KDTREE_BF16) {
    uint16_t* to = static_cast<uint16_t*>(array) + offset;
    for (int i = 0; i < count; ++i) to[i] = to_bf16(values[i]);
  } else {
    float* to = static_cast<float*>(array) + offset;
    for (int i = 0; i < count; ++i) to[i] = static_cast<float>(values[i]);
  }
}

}  // namespace kdtree

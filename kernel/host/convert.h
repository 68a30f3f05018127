// Exact conversions between the dtypes of rows and float64, and correctly rounded ones back.
#ifndef KDTREE_HOST_CONVERT_H
#define KDTREE_HOST_CONVERT_H

#include <cstdint>

namespace kdtree {

// Elements [offset, offset + count) of `array` (F32, BF16, F8_E4M3 or F8_E5M2), times `scale`; element i goes
// to out[i * step].
void load_row(const void* array, int32_t dtype, int64_t offset, int count, double scale, double* out, int step);

// Rounds to nearest, ties to even, straight from float64; `array` is F32 or BF16.
void store_row(const double* values, int count, void* array, int32_t dtype, int64_t offset);

}  // namespace kdtree

#endif  // KDTREE_HOST_CONVERT_H

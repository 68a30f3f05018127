// How a call is added to a layer's record. One thread calls this once per call, when all sums are known; on
// the device, too. The mirror is only ever stored to: it may be host memory behind a bus.
#ifndef KDTREE_COMMON_RECORD_H
#define KDTREE_COMMON_RECORD_H

#include <cmath>
#include <cstdint>

#include "common/bounds.h"
#include "kdtree_verify.h"

namespace kdtree {

// What one kdtree_compare call found. An element where stock is NaN or Inf is in none of the sums; one where
// only ours is counts in `nonfinite` and is in none of the others.
struct CompareSums {
  uint64_t rows;
  uint64_t nonfinite;
  uint64_t out_of_range;
  double max_abs;
  double sum_sq_diff;
  double sum_sq_stock;
};

// One 8-byte store: a reader of the mirror sees the old value or the new one, never half of each.
template <typename T>
KDTREE_HD void publish(T& field, T* mirror_field, T value) {
  static_assert(sizeof(T) == 8, "a record's field is 8 bytes");
  field = value;
  if (mirror_field != nullptr) *static_cast<volatile T*>(mirror_field) = value;
}

#define KDTREE_PUBLISH(field, value) \
  publish(record->field, mirror != nullptr ? &mirror->field : nullptr, value)

KDTREE_HD void add_verify(kdtree_layer_record* record, kdtree_layer_record* mirror, uint64_t rows,
                          uint64_t out_of_range) {
  KDTREE_PUBLISH(out_of_range, record->out_of_range + out_of_range);
  KDTREE_PUBLISH(kernel_rows, record->kernel_rows + rows);
  KDTREE_PUBLISH(kernel_calls, record->kernel_calls + 1);
}

KDTREE_HD void add_compare(kdtree_layer_record* record, kdtree_layer_record* mirror, const CompareSums& sums,
                           double rel_l2_bound, double max_abs_bound) {
  // A difference from an output that is all zeros has no finite ratio: it is reported as infinite.
  const double rel_l2 = sums.sum_sq_diff == 0 ? 0.0 : std::sqrt(sums.sum_sq_diff / sums.sum_sq_stock);
  const bool exceeded = sums.nonfinite > 0 || rel_l2 > rel_l2_bound ||
                        (max_abs_bound > 0 && sums.max_abs > max_abs_bound);
  KDTREE_PUBLISH(out_of_range, record->out_of_range + sums.out_of_range);
  KDTREE_PUBLISH(compare_rows, record->compare_rows + sums.rows);
  KDTREE_PUBLISH(nonfinite, record->nonfinite + sums.nonfinite);
  KDTREE_PUBLISH(max_abs, sums.max_abs > record->max_abs ? sums.max_abs : record->max_abs);
  KDTREE_PUBLISH(sum_sq_diff, record->sum_sq_diff + sums.sum_sq_diff);
  KDTREE_PUBLISH(sum_sq_stock, record->sum_sq_stock + sums.sum_sq_stock);
  KDTREE_PUBLISH(worst_rel_l2, rel_l2 > record->worst_rel_l2 ? rel_l2 : record->worst_rel_l2);
  KDTREE_PUBLISH(last_rel_l2, rel_l2);
  KDTREE_PUBLISH(last_max_abs, sums.max_abs);
  KDTREE_PUBLISH(exceeded_calls, record->exceeded_calls + exceeded);
  KDTREE_PUBLISH(compare_calls, record->compare_calls + 1);
}

#undef KDTREE_PUBLISH

}  // namespace kdtree

#endif  // KDTREE_COMMON_RECORD_H

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
  uint64_t requests;        // compared ones
  int64_t longest_prefix;   // of these
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

// A difference from an output that is all zeros has no finite ratio: it is reported as infinite.
KDTREE_HD double relative_l2(const CompareSums& sums) {
  return sums.sum_sq_diff == 0 ? 0.0 : std::sqrt(sums.sum_sq_diff / sums.sum_sq_stock);
}

struct Outcome {
  double rel_l2;
  bool exceeded;
};

KDTREE_HD Outcome compare_outcome(const CompareSums& sums, double rel_l2_bound, double max_abs_bound) {
  const double rel_l2 = relative_l2(sums);
  const bool exceeded = sums.nonfinite > 0 || rel_l2 > rel_l2_bound ||
                        (max_abs_bound > 0 && sums.max_abs > max_abs_bound);
  return {rel_l2, exceeded};
}

KDTREE_HD void add_to_layer(kdtree_layer_record* record, kdtree_layer_record* mirror, const CompareSums& sums,
                            const Outcome& outcome) {
  const double rel_l2 = outcome.rel_l2;
  KDTREE_PUBLISH(compare_rows, record->compare_rows + sums.rows);
  KDTREE_PUBLISH(nonfinite, record->nonfinite + sums.nonfinite);
  KDTREE_PUBLISH(max_abs, sums.max_abs > record->max_abs ? sums.max_abs : record->max_abs);
  KDTREE_PUBLISH(sum_sq_diff, record->sum_sq_diff + sums.sum_sq_diff);
  KDTREE_PUBLISH(sum_sq_stock, record->sum_sq_stock + sums.sum_sq_stock);
  KDTREE_PUBLISH(worst_rel_l2, rel_l2 > record->worst_rel_l2 ? rel_l2 : record->worst_rel_l2);
  KDTREE_PUBLISH(last_rel_l2, rel_l2);
  KDTREE_PUBLISH(last_max_abs, sums.max_abs);
  KDTREE_PUBLISH(exceeded_calls, record->exceeded_calls + outcome.exceeded);
  KDTREE_PUBLISH(compare_calls, record->compare_calls + 1);
}

// The bucket of `value` among `buckets` whose first ends at `first_end`, the next at twice that, ..., the last nowhere.
KDTREE_HD int bucket_of(int64_t value, int64_t first_end, int buckets) {
  int bucket = 0;
  for (int64_t end = first_end; bucket < buckets - 1 && value >= end; end *= 2) ++bucket;
  return bucket;
}

KDTREE_HD int shape_of(const CompareSums& sums) {
  const int prefix = bucket_of(sums.longest_prefix, 1024, KDTREE_PREFIX_BUCKETS);
  const int batch = bucket_of(static_cast<int64_t>(sums.requests), 2, KDTREE_BATCH_BUCKETS);
  return prefix * KDTREE_BATCH_BUCKETS + batch;
}

KDTREE_HD void add_to_shape(kdtree_shape_record* record, kdtree_shape_record* mirror, const CompareSums& sums,
                            const Outcome& outcome, const uint64_t* stamps) {
  const double rel_l2 = outcome.rel_l2;
  KDTREE_PUBLISH(exceeded_calls, record->exceeded_calls + outcome.exceeded);
  KDTREE_PUBLISH(nonfinite, record->nonfinite + sums.nonfinite);
  KDTREE_PUBLISH(worst_rel_l2, rel_l2 > record->worst_rel_l2 ? rel_l2 : record->worst_rel_l2);
  KDTREE_PUBLISH(sum_rel_l2, record->sum_rel_l2 + rel_l2);
  if (stamps != nullptr && stamps[0] <= stamps[1] && stamps[1] <= stamps[2]) {
    KDTREE_PUBLISH(stock_ns, record->stock_ns + (stamps[1] - stamps[0]));
    KDTREE_PUBLISH(kernel_ns, record->kernel_ns + (stamps[2] - stamps[1]));
    KDTREE_PUBLISH(timed_calls, record->timed_calls + 1);
  }
  KDTREE_PUBLISH(calls, record->calls + 1);
}

// Adds a call to its layer and to its shape.
KDTREE_HD Outcome add_compare(const kdtree_compare_args& args, const CompareSums& sums) {
  kdtree_layer_record* const record = args.record;
  kdtree_layer_record* const mirror = args.mirror;
  KDTREE_PUBLISH(out_of_range, record->out_of_range + sums.out_of_range);
  if (sums.rows == 0) return {0.0, false};
  const Outcome outcome = compare_outcome(sums, args.rel_l2_bound, args.max_abs_bound);
  if (args.shapes != nullptr) {
    const int shape = shape_of(sums);
    kdtree_shape_record* const shape_mirror = args.shapes_mirror != nullptr ? args.shapes_mirror + shape : nullptr;
    add_to_shape(args.shapes + shape, shape_mirror, sums, outcome, args.stamps);
  }
  add_to_layer(record, mirror, sums, outcome);
  return outcome;
}

#undef KDTREE_PUBLISH

}  // namespace kdtree

#endif  // KDTREE_COMMON_RECORD_H

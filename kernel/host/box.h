// The box on the host: what kernel/cuda/box.cu does, one row after the other.
#ifndef KDTREE_HOST_BOX_H
#define KDTREE_HOST_BOX_H

#include <cstdint>
#include <functional>

#include "common/record.h"
#include "kdtree_verify.h"

namespace kdtree {

// Fills the box of a call that broke a bound, if it is empty. measure(b) compares request b alone.
void offer_to_box(const kdtree_compare_args& args, double rel_l2,
                  const std::function<CompareSums(int64_t request)>& measure);

}  // namespace kdtree

#endif  // KDTREE_HOST_BOX_H

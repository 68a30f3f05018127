// Sizes of elements.
#ifndef KDTREE_COMMON_DTYPE_H
#define KDTREE_COMMON_DTYPE_H

#include <cstdint>

#include "common/bounds.h"
#include "kdtree_verify.h"

namespace kdtree {

KDTREE_HD int element_size(int32_t dtype) {
  switch (dtype) {
    case KDTREE_I64: return 8;
    case KDTREE_F32:
    case KDTREE_I32: return 4;
    case KDTREE_BF16: return 2;
    default: return 1;
  }
}

}  // namespace kdtree

#endif  // KDTREE_COMMON_DTYPE_H

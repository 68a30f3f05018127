// What tells one library from the other, as far as the shared code needs to know it.
#ifndef KDTREE_COMMON_LIBRARY_H
#define KDTREE_COMMON_LIBRARY_H

#include <cstdint>

#include "kdtree_verify.h"

namespace kdtree {

struct Library {
  const char* device_kind;           // "cuda", "host"
  const char* archs;                 // "sm_120a,sm_90a"; "" for the host
  uint32_t q_dtypes;                 // bit 1 << kdtree_dtype: taken for q, k and v
  uint32_t pool_dtypes;
  uint32_t out_dtypes;
  int row_alignment;                 // bytes: of q, k, v, pool, out and their strides; 1: an element's own
  int num_variants;
  const char* const* variant_names;  // [num_variants]
};

// Defined once by each library.
extern const Library library;

}  // namespace kdtree

#endif  // KDTREE_COMMON_LIBRARY_H

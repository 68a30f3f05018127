// Tree-verify attention of a block of query rows, in float64.
#ifndef KDTREE_HOST_ATTENTION_H
#define KDTREE_HOST_ATTENTION_H

#include <cstdint>

#include "common/bounds.h"
#include "kdtree_verify.h"

namespace kdtree {

constexpr int kBlockRows = 16;  // (token, head) pairs, tokens outermost
constexpr int kTileKeys = 16;

// One worker's memory; nothing in it outlives a block. Keys lie transposed, so that the inner loop of either
// product runs over neighbours. The padding keeps the rows of `values` out of one cache set.
struct Scratch {
  double query[kBlockRows][KDTREE_QK_DIM];
  double keys[KDTREE_QK_DIM][kTileKeys];
  double values[kTileKeys][KDTREE_V_DIM + 8];
  double sums[kBlockRows][KDTREE_V_DIM];
};

inline int64_t blocks_of(const Request& request, int32_t num_heads) {
  return (request.rows * num_heads + kBlockRows - 1) / kBlockRows;
}

// Computes and stores rows [block * kBlockRows, ...) of the request's T * num_heads (token, head) pairs.
void attend(const kdtree_verify_args& args, const Request& request, int64_t block, Scratch& scratch);

}  // namespace kdtree

#endif  // KDTREE_HOST_ATTENTION_H

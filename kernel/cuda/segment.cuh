/* A segment: the consecutive key blocks of one row tile that one CTA walks, as steps of one shared-memory stage each.
 * A prefix block is one step, since a pool row is key and value in one. A draft block is two: keys, then values, which
 * the caller passes in a tensor of their own.
 */
#pragma once

#include "plan.cuh"

namespace kdtree {

enum class Step { kPrefix, kDraftKeys, kDraftValues };

struct Segment {
  Request request;
  int64_t prefix_key;  // of the request's prefix: where the first step begins
  int32_t draft_key;   // of the request's draft tokens: where the first draft step begins
  int32_t first_row;   // of the tile, in the request's (token, head) rows
  int32_t rows;        // of the tile
  int32_t prefix_steps;
  int32_t steps;       // prefix steps and draft steps; fits: 2^31 blocks of indices exceed any GPU's memory. 0: no more
  bool opens, closes;  // whether the tile's first and its last block are in it
  int32_t parts;       // of a tile that opens here and does not close: the CTAs that share it

  __device__ __forceinline__ Step kind(int step) const {
    return step < prefix_steps ? Step::kPrefix : (step - prefix_steps) % 2 == 0 ? Step::kDraftKeys : Step::kDraftValues;
  }
  /* First key of a step, counted in the prefix or in the draft tokens. */
  __device__ __forceinline__ int64_t first_key(int step) const {
    return step < prefix_steps ? prefix_key + int64_t{step} * kKeys : draft_key + (step - prefix_steps) / 2 * kKeys;
  }
};
static_assert(sizeof(Segment) <= Shared::kSegmentBytes);

/* Blocks [begin, end) of row tile `tile`. */
__device__ __forceinline__ Segment make_segment(const Request& r, int num_heads, int tile, int64_t begin, int64_t end) {
  const int64_t prefix = prefix_blocks(r);
  Segment s;
  s.request = r;
  s.first_row = tile * kRows;
  s.rows = min(static_cast<int>(r.rows) * num_heads - s.first_row, kRows);
  s.prefix_key = min(begin, prefix) * kKeys;
  s.prefix_steps = static_cast<int>(min(end, prefix) - min(begin, prefix));
  s.draft_key = static_cast<int>(max(begin - prefix, int64_t{0})) * kKeys;
  s.steps = s.prefix_steps + 2 * static_cast<int>(max(end - prefix, int64_t{0}) - max(begin - prefix, int64_t{0}));
  s.opens = begin == 0;
  s.closes = end == blocks_of(r);
  s.parts = 0;
  return s;
}

/* The next segment of the plan, for one thread; one of no steps where the share is done. */
__device__ __forceinline__ void next_segment(const kdtree_verify_args& args, Plan& plan, Segment& segment) {
  while (plan.unit < plan.end) {
    const Request r = load_request(args, plan.request);
    const int64_t blocks = blocks_of(r), units = units_of(r, args.num_heads);
    const int64_t offset = plan.unit - plan.request_begin;
    if (offset >= units) {
      plan.request_begin += units;
      ++plan.request;
      continue;
    }
    const int tile = static_cast<int>(offset / blocks);
    const int64_t begin = offset - tile * blocks;
    const int64_t end = min(blocks, begin + (plan.end - plan.unit));
    segment = make_segment(r, args.num_heads, tile, begin, end);
    if (segment.opens && !segment.closes)
      segment.parts = static_cast<int>((plan.unit + blocks - 1) / plan.share) - static_cast<int>(blockIdx.x) + 1;
    plan.unit += end - begin;
    return;
  }
  segment.steps = 0;
}

}  // namespace kdtree

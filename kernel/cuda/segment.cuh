/* A segment: the consecutive key blocks of one row tile that one CTA walks, as steps of one shared-memory stage each.
 * A prefix block is one step, since a pool row is key and value in one. A draft block is two: keys, then values, which
 * the caller passes in a tensor of their own.
 */
#pragma once

#include "plan.cuh"
#include "workspace.cuh"

namespace kdtree {

struct Segment {
  Request request;
  int64_t entry;       // of kv_indices: the first step's first key of the prefix
  int32_t prefix_keys; // in all steps
  int32_t draft_key;   // of the request's draft tokens: where the first draft step begins
  int32_t first_row;   // of the tile, in the request's (token, head) rows
  int32_t rows;        // of the tile
  int32_t first_step;  // as the CTA counts them
  int32_t prefix_steps;
  int32_t draft_steps;  // of keys and of values
  bool opens, closes;   // whether the tile's first and its last block are in it
  bool last;            // no segment, but the end of the share

  __device__ __forceinline__ int prefix_end() const { return first_step + prefix_steps; }
  __device__ __forceinline__ int end() const { return prefix_end() + draft_steps; }
};
static_assert(sizeof(Segment) <= Shared::kSegmentBytes);

/* The CTA's segment `number`, or the second one before or after it. */
__device__ __forceinline__ Segment& segment_of(unsigned char* shared, int number) {
  return *reinterpret_cast<Segment*>(shared + Shared::kSegment + number % 2 * Shared::kSegmentBytes);
}

/* Describes the next segment of the plan, for one thread, and reports a tile that opens in it and does not close. */
__device__ __forceinline__ void describe(const kdtree_verify_args& args, Plan& plan, Segment& segment,
                                         CtaReport& report) {
  segment.last = plan.left == 0 || plan.block + plan.left <= 0;
  segment.first_step = plan.steps;
  if (segment.last) return;
  const Request& request = plan.current;
  if (plan.tile == tiles_of(request, args.num_heads)) {
    do plan.current = load_request(args, ++plan.request);
    while (request.rows == 0);
    plan.tile = 0;
  }
  const int prefix = prefix_blocks(request), blocks = blocks_of(request);
  const int begin = max(plan.block, 0), end = min(blocks - plan.block, plan.left) + plan.block;
  segment.request = request;
  segment.first_row = plan.tile * kRows;
  segment.rows = min(static_cast<int>(request.rows) * args.num_heads - segment.first_row, kRows);
  segment.prefix_steps = min(end, prefix) - min(begin, prefix);
  segment.entry = request.prefix + int64_t{begin} * kKeys;
  segment.prefix_keys = static_cast<int>(
      min(request.prefix_len - int64_t{begin} * kKeys, int64_t{segment.prefix_steps} * kKeys));
  segment.draft_key = max(begin - prefix, 0) * kKeys;
  segment.draft_steps = 2 * (max(end - prefix, 0) - max(begin - prefix, 0));
  segment.opens = begin == 0;
  segment.closes = end == blocks;
  plan.steps = segment.end();
  plan.left -= end - plan.block;
  plan.block = segment.closes ? -kTileCost : end;
  plan.tile += segment.closes;
  if (!segment.opens || segment.closes) return;
  report.token = request.row;
  report.first_row = segment.first_row;
  report.rows = segment.rows;
  report.parts = 1 + ceil_div(blocks - end, plan.share);
}

}  // namespace kdtree

/* How one launch's work is split, from the indptrs alone and on the device: the host never learns a length.
 *
 * The unit of work is (request, row tile, key block), numbered in that order; a request's key blocks are those of
 * its prefix, then those of its draft tokens. Each CTA takes `share` units in a row, so that it touches at most two
 * tiles in part: the one it finds begun ("front") and the one it leaves unfinished ("tail"). These two are all the
 * workspace that a CTA needs, whatever the batch and the lengths.
 */
#pragma once

#include "common/bounds.h"
#include "tile.cuh"
#include "warp.cuh"

namespace kdtree {

__device__ __forceinline__ int64_t prefix_blocks(const Request& r) { return (r.prefix_len + kKeys - 1) / kKeys; }

__device__ __forceinline__ int64_t blocks_of(const Request& r) {
  return prefix_blocks(r) + (r.rows + kKeys - 1) / kKeys;
}

__device__ __forceinline__ int64_t units_of(const Request& r, int num_heads) {
  return (r.rows * num_heads + kRows - 1) / kRows * blocks_of(r);
}

/* Where a CTA is in its share of the work. It lies in shared memory: the step loop has no registers to spare. */
struct Plan {
  int64_t share;          // units of every CTA
  int64_t unit, end;      // of this CTA: the next unit, and the end of its share
  int64_t request_begin;  // first unit of `request`
  int32_t request;        // the one that `unit` lies in, or one before it
  int32_t pad_;
  unsigned long long refused;     // what this CTA found out of range; CTA 0: windows and masks too
  unsigned long long query_rows;  // of the whole call
  int64_t warp_units[kWarps];
};
static_assert(sizeof(Plan) <= Shared::kPlanBytes);

/* Gives this CTA its share; all threads call it together, and find the plan filled after their next barrier. */
__device__ __forceinline__ void share_out(const kdtree_verify_args& args, Plan& plan) {
  const int warp = threadIdx.x / 32;
  const int each = (args.batch + kThreads - 1) / kThreads;  // requests of a thread
  const int first = min(static_cast<int>(threadIdx.x) * each, args.batch), last = min(first + each, args.batch);

  int64_t units = 0, query_rows = 0;
  int refused = 0;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    const Request r = load_request(args, i);
    units += units_of(r, args.num_heads);
    query_rows += r.rows;
    refused += r.refused;
  }
  const int64_t upto = warp_prefix_sum(units);
  if (threadIdx.x % 32 == 31) plan.warp_units[warp] = upto;
  if (threadIdx.x == 0) plan.refused = plan.query_rows = 0;
  __syncthreads();
  int64_t before = upto - units, total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += plan.warp_units[w];
    total += plan.warp_units[w];
  }
  const int64_t share = max((total + gridDim.x - 1) / gridDim.x, int64_t{1});
  const int64_t unit = min(share * blockIdx.x, total);
  if (threadIdx.x == 0) {
    plan.share = share;
    plan.unit = unit;
    plan.end = min(unit + share, total);
  }
  if (unit >= before && unit < before + units) {
    plan.request = first;
    plan.request_begin = before;
  }
  if (blockIdx.x == 0) {
    if (query_rows > 0) atomicAdd(&plan.query_rows, static_cast<unsigned long long>(query_rows));
    if (refused > 0) atomicAdd(&plan.refused, static_cast<unsigned long long>(refused));
  }
}

}  // namespace kdtree

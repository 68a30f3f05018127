/* How one launch's work is split, from the indptrs alone and on the device: the host never learns a length.
 *
 * The unit of work is (request, row tile, key block), numbered in that order; a request's key blocks are those of
 * its prefix, then those of its draft tokens. Each CTA takes `share` units in a row, so that it touches at most two
 * tiles in part: the one it finds begun ("front") and the one it leaves unfinished ("tail"). These two are all the
 * workspace that a CTA needs, whatever the batch and the lengths.
 *
 * A CTA that ends one tile and begins the next has queries to load and a part to store twice. Where it costs a share at
 * most kAlignmentCost units more, every tile therefore begins a share: its blocks are padded to whole shares, and a CTA
 * stops where its tile does. The least such share is taken, beginning with the even one rounded down.
 */
#pragma once

#include "common/bounds.h"
#include "tile.cuh"
#include "warp.cuh"

namespace kdtree {

/* Blocks of a request fit: 2^31 blocks of indices exceed any GPU's memory. So do the keys and the units of a CTA's
 * share: they would take hours. */
__device__ __forceinline__ int prefix_blocks(const Request& r) {
  return static_cast<int>((r.prefix_len + kKeys - 1) / kKeys);
}

__device__ __forceinline__ int blocks_of(const Request& r) {
  return prefix_blocks(r) + (static_cast<int>(r.rows) + kKeys - 1) / kKeys;
}

__device__ __forceinline__ int tiles_of(const Request& r, int num_heads) {
  return (static_cast<int>(r.rows) * num_heads + kRows - 1) / kRows;
}

constexpr int kAlignmentCost = 2;

/* Beginning a tile costs a CTA about as much as this many blocks, and is counted so: a CTA's share may be many tiles of
 * one block. These units stand before a tile's blocks; nothing is done for them. Where every tile begins a share there
 * are none: each CTA has one tile then. */
constexpr int kTileCost = 4;

/* Where a CTA is in its share of the work. */
struct Plan {
  Request current;                // the request of the next unit
  int32_t request, tile, block;   // the next unit; a negative block is a unit of kTileCost
  int32_t share;                  // units of every CTA
  int32_t left;                   // units of this CTA that are still to do
  int32_t steps;                  // of the segments described so far
  unsigned long long refused;     // what this CTA found out of range; CTA 0: windows and masks too
  unsigned long long query_rows;  // of the whole call
};
static_assert(sizeof(Plan) <= Shared::kPlanBytes);

__device__ __forceinline__ Plan& plan_of(unsigned char* shared) {
  return *reinterpret_cast<Plan*>(shared + Shared::kPlan);
}

/* The size of each request; it lies where the stages will be. */
struct RequestSize {
  int32_t tiles, blocks;  // of one tile
};
static_assert(KDTREE_MAX_BATCH * sizeof(RequestSize) <= 2 * Shared::kStageBytes);

/* The warp that shares out and, lane 0, describes segments: the first of the first group. */
constexpr int kPlanningWarp = kLoaderThreads / 32;

/* Finds the requests' sizes; all threads together, before a barrier. Returns, to the planning warp, the request of the
 * lane's number. */
__device__ __forceinline__ Request measure(const kdtree_verify_args& args, Plan& plan, RequestSize* sizes) {
  const int first = (threadIdx.x + kThreads - kPlanningWarp * 32) % kThreads;
  Request own = {};
#pragma unroll 1
  for (int i = first; i < args.batch; i += kThreads) {
    const Request r = load_request(args, i);
    sizes[i] = {tiles_of(r, args.num_heads), blocks_of(r)};
    if (blockIdx.x == 0) {
      if (r.rows > 0) atomicAdd(&plan.query_rows, static_cast<unsigned long long>(r.rows));
      if (r.refused > 0) atomicAdd(&plan.refused, static_cast<unsigned long long>(r.refused));
    }
    if (i == first) own = r;
  }
  return own;
}

/* Of numbers from 0 on. Unsigned 64 bits are divided as 32 where that will do. */
__device__ __forceinline__ int divide(int64_t a, int b) {
  return static_cast<int>(static_cast<uint64_t>(a) / static_cast<uint32_t>(b));
}

__device__ __forceinline__ int ceil_div(int a, int b) {
  return (static_cast<uint32_t>(a) + static_cast<uint32_t>(b) - 1) / static_cast<uint32_t>(b);
}

/* Gives this CTA its share; one warp together, after a barrier. `own` is the request of the lane's number. */
__device__ __forceinline__ void share_out(const kdtree_verify_args& args, Plan& plan, const RequestSize* sizes,
                                          const Request& own) {
  const int lane = threadIdx.x % 32, ctas = gridDim.x;
  int64_t blocks = 0, tiles = 0;
#pragma unroll 1
  for (int i = lane; i < args.batch; i += 32) {
    blocks += int64_t{sizes[i].tiles} * sizes[i].blocks;
    tiles += sizes[i].tiles;
  }
  blocks = warp_sum(blocks), tiles = warp_sum(tiles);
  const int64_t units = blocks + tiles * kTileCost;
  int share = max(divide(units + ctas - 1, ctas), 1);

  bool aligned = false;
  if (tiles <= ctas) {  // so that a tile's cost is a few units of a share at most
    int tried = max(max(divide(blocks + ctas - 1, ctas), divide(units, ctas)), 1);
#pragma unroll 1
    for (; tried <= share + kAlignmentCost && !aligned; ++tried) {
      int taken = 0;  // CTAs, if every tile began a share
#pragma unroll 1
      for (int i = lane; i < args.batch; i += 32)
        taken += sizes[i].tiles * min(ceil_div(sizes[i].blocks, tried), ctas + 1);
      aligned = __reduce_add_sync(~0u, min(taken, ctas + 1)) <= ctas;
    }
    if (aligned) share = tried - 1;
  }

  int64_t unit = int64_t{share} * blockIdx.x;  // counted from the first of the next 32 requests
  if (lane == 0) plan.left = plan.steps = 0;
  __syncwarp();
#pragma unroll 1
  for (int first = 0; first < args.batch; first += 32) {
    const RequestSize mine = first + lane < args.batch ? sizes[first + lane] : RequestSize{};
    const int before = aligned ? 0 : kTileCost;
    const int tile_units = aligned ? ceil_div(mine.blocks, share) * share : before + mine.blocks;
    const int64_t here = int64_t{mine.tiles} * tile_units, upto = args.batch == 1 ? here : warp_prefix_sum(here);
    const int64_t offset = unit - (upto - here);
    if (offset >= 0 && offset < here) {
      plan.current = first == 0 ? own : load_request(args, first + lane);
      plan.request = first + lane;
      plan.tile = divide(offset, tile_units);
      plan.block = static_cast<int>(offset - int64_t{plan.tile} * tile_units) - before;
      plan.share = share;
      plan.left = aligned ? min(share, mine.blocks - plan.block)
                          : static_cast<int>(min(int64_t{share}, units - int64_t{share} * blockIdx.x));
    }
    const int64_t all = __shfl_sync(~0u, upto, 31);
    if (unit < all) break;
    unit -= all;
  }
  __syncwarp();
}

}  // namespace kdtree

/* Joins the parts of tiles that several CTAs walked, by log-sum-exp, and adds the call to the layer's record.
 *
 * Grid.  A fixed number of CTAs of 8 warps, all of which fit on the device at once. Every CTA finds the work by a scan
 * of the reports and takes each gridDim.x-th item: 8, 4, 2 or 1 rows of one tile. A warp has a row, a lane 2 x 8
 * neighbouring elements of PartialTile::out. The more parts a tile is in, the more warps share a row's: most often no
 * lane loads more than 8 of them, which it does at once.
 */
#pragma once

#include "common/record.h"
#include "result.cuh"
#include "warp.cuh"
#include "workspace.cuh"

namespace kdtree {

constexpr int kMergeThreads = 256;
constexpr int kMergeWarps = kMergeThreads / 32;
constexpr int kMergeCtasPerMultiprocessor = 2;
static_assert(kMergeCtasPerMultiprocessor % 2 == 0, "items are dealt out to CTAs two by two");
static_assert(kMaxCtas <= kMergeThreads, "one thread scans one report");
static_assert(kMaxCtas <= kMergeWarps * 32, "each lane weighs one of a warp's parts");

/* What a lane has of a row: 8 elements at 8 * lane, and 8 half a row further on. */
constexpr int kVectors = 2;
constexpr int kVectorElements = 8;
constexpr int kVectorDistance = KDTREE_V_DIM / kVectors;
static_assert(kVectorDistance == 32 * kVectorElements && kVectorDistance == 2 * kWarpCols);

/* Parts of a row that a warp loads at once, the first ones before it knows what they weigh. */
constexpr int kAtOnce = 8;

struct MergeShared {
  int warp_items[kMergeWarps];
  int upto[kMergeThreads];  // items of the reports up to this one
  unsigned long long refused;
  CtaReport reports[kMergeThreads];
  int cta, item;                      // whose report tells of the tile, and which of the tile's items is next
  float2 weight[kMergeWarps][32][2];  // [warp][part][half of the warp]: of its lanes' two vectors
  float2 stats[kMergeWarps];          // of each warp's parts together, as of a part
  float sum[kMergeWarps][KDTREE_V_DIM];
};

/* How many warps share a row that is in so many parts, as a power of two. */
__device__ __forceinline__ int team_log2(int parts) {
  return parts <= kAtOnce ? 0 : parts <= 2 * kAtOnce ? 1 : parts <= 4 * kAtOnce ? 2 : 3;
}
static_assert(kMergeWarps == 1 << 3);

__device__ __forceinline__ int items_of(const CtaReport& report) {
  const int rows = kMergeWarps >> team_log2(report.parts);  // of an item
  return (report.rows + rows - 1) / rows;
}

/* A lane's elements of a row, in float32. */
struct RowSum {
  float element[kVectors][kVectorElements] = {};

  __device__ __forceinline__ void add(const uint4& halves, float weight, int vector) {
    const uint32_t pairs[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float2 pair = unpack_f16(pairs[p]);
      element[vector][2 * p] += weight * pair.x;
      element[vector][2 * p + 1] += weight * pair.y;
    }
  }
};

/* One warp's parts of a row: `first`, and each `step`-th after it, `count` in all. Adds them to `sum`, relative to
 * their greatest maximum; returns that and their denominator. */
__device__ __forceinline__ float2 add_parts(MergeShared& shared, const Workspace& workspace, int cta, int row,
                                            int first, int step, int count, RowSum& sum) {
  const int lane = lane_id();
  const PartialTile* const fronts = &workspace.front(cta + first);
  const auto part = [&](int i) { return fronts + 2 * step * i + (first == 0 && i == 0); };  // the first CTA's is a tail
  float2(&weight)[32][2] = shared.weight[threadIdx.x / 32];
  float2 total = {};
#pragma unroll 1
  for (int done = 0; done < count; done += kAtOnce) {
    uint4 elements[kAtOnce][kVectors];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (done + i >= count) break;
      const uint4* const from = reinterpret_cast<const uint4*>(part(done + i)->out[row]) + lane;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) elements[i][v] = from[v * kVectorDistance / kVectorElements];
    }
    if (done == 0) {
      const bool mine = lane < count;
      const float2 stats = mine ? part(lane)->stats[row] : make_float2(-INFINITY, kNothingSeen);
      const float4 scale = mine ? *reinterpret_cast<const float4*>(part(lane)->scale[row]) : make_float4(0, 0, 0, 0);
      const float max = warp_all(stats.x, [](float a, float b) { return fmaxf(a, b); });
      const float own = exp2_fast(stats.x - shift_of(max));
      total = make_float2(max, warp_all(own * stats.y, [](float a, float b) { return a + b; }));
      weight[lane][0] = make_float2(own * scale.x, own * scale.z);
      weight[lane][1] = make_float2(own * scale.y, own * scale.w);
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (done + i >= count) break;
      const float2 weights = weight[done + i][lane / 16];
      sum.add(elements[i][0], weights.x, 0);
      sum.add(elements[i][1], weights.y, 1);
    }
  }
  return total;
}

/* An item; all threads together. */
__device__ __forceinline__ void merge_rows(MergeShared& shared, const kdtree_verify_args& args,
                                           const Workspace& workspace) {
  const CtaReport& report = shared.reports[shared.cta];
  const int log2 = team_log2(report.parts), team = 1 << log2;
  const int warp = uniform(threadIdx.x / 32), lane = lane_id(), first = warp % team;
  const int row = shared.item * (kMergeWarps >> log2) + (warp >> log2);
  const bool exists = row < report.rows;
  RowSum sum;
  float2 stats = {};
  if (exists)
    stats = add_parts(shared, workspace, shared.cta, row, first, team, uniform(report.parts - first + team - 1 >> log2),
                      sum);
  uint16_t* const to = result_row(args, report.token, report.first_row + row);
  if (team == 1) {
    const float scale = reciprocal(stats.y);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const auto& e = sum.element[v];
      uint32_t packed[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) packed[p] = pack_bf16(e[2 * p] * scale, e[2 * p + 1] * scale);
      transpose_quads(packed);  // of a quad's four column tiles a lane has the lane % 4 th then
      if (exists)
        *reinterpret_cast<uint4*>(to + partial_column(v * kVectorDistance + lane / 4 * 32) + lane % 4 * 8) =
            make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
    return;
  }
  if (lane == 0) shared.stats[warp] = stats;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const auto& e = sum.element[v];
    float4* const own = reinterpret_cast<float4*>(&shared.sum[warp][v * kVectorDistance + lane * kVectorElements]);
    own[0] = make_float4(e[0], e[1], e[2], e[3]), own[1] = make_float4(e[4], e[5], e[6], e[7]);
  }
  __syncthreads();
  if (!exists) return;
  // Each eight lanes know all warps of the team, and so what the sums of each weigh in the row.
  const int other = lane % kMergeWarps;
  const float2 theirs = other < team ? shared.stats[warp - first + other] : make_float2(-INFINITY, kNothingSeen);
  float highest = theirs.x;
#pragma unroll
  for (int i = 1; i < kMergeWarps; i *= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, i));
  const float factor = exp2_fast(theirs.x - shift_of(highest));
  float total = factor * theirs.y;
#pragma unroll
  for (int i = 1; i < kMergeWarps; i *= 2) total += __shfl_xor_sync(~0u, total, i);
  const float share = factor * reciprocal(total);
#pragma unroll 1
  for (int at = (first * 32 + lane) * 2; at < KDTREE_V_DIM; at += team * 64) {
    float left = 0.f, right = 0.f;
#pragma unroll
    for (int i = 0; i < kMergeWarps; ++i) {
      if (i >= team) break;
      const float weight = __shfl_sync(~0u, share, i);
      const float2 both = *reinterpret_cast<const float2*>(&shared.sum[warp - first + i][at]);
      left += weight * both.x, right += weight * both.y;
    }
    *reinterpret_cast<uint32_t*>(to + partial_column(at)) = pack_bf16(left, right);
  }
}

extern "C" __global__ void __launch_bounds__(kMergeThreads, kMergeCtasPerMultiprocessor)
    kdtree_merge(const __grid_constant__ kdtree_verify_args args, const __grid_constant__ Workspace workspace,
                 int ctas) {
  __shared__ MergeShared shared;
  launch_dependents();
  wait_for_dependency();
  const int warp = threadIdx.x / 32;
  const bool reports = threadIdx.x < ctas;
  CtaReport own = {};
  if (reports) own = shared.reports[threadIdx.x] = workspace.reports[threadIdx.x];
  const int items = items_of(own);
  const bool records = blockIdx.x == gridDim.x - 1 && args.record != nullptr;  // a CTA that has no item, most often
  if (threadIdx.x == 0) shared.refused = 0;

  const int upto = warp_prefix_sum(items);
  if (threadIdx.x % 32 == 31) shared.warp_items[warp] = upto;
  __syncthreads();
  if (records && reports) atomicAdd(&shared.refused, static_cast<unsigned long long>(own.refused));
  int before = upto - items;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w)
    if (w < warp) before += shared.warp_items[w];
  shared.upto[threadIdx.x] = before + items;
  __syncthreads();

  // CTAs come to a multiprocessor two by two, and each shall have an item before one has two.
  const int half = gridDim.x / 2;
  for (int i = blockIdx.x / 2 + blockIdx.x % 2 * half; i < shared.upto[kMergeThreads - 1]; i += gridDim.x) {
    const int cta = threadIdx.x, before = cta == 0 ? 0 : shared.upto[cta - 1];
    if (i >= before && i < shared.upto[cta]) shared.cta = cta, shared.item = i - before;
    __syncthreads();
    merge_rows(shared, args, workspace);
    __syncthreads();
  }

  __syncthreads();
  if (records && threadIdx.x == 0)
    add_verify(args.record, args.mirror, shared.reports[0].query_rows, shared.refused);
}

}  // namespace kdtree

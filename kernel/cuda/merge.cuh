/* Joins the parts of tiles that several CTAs walked, by log-sum-exp, and adds the call to the layer's record.
 *
 * Grid.  A fixed number of CTAs of 16 warps. Every CTA finds the work by a scan of the reports and takes each
 * gridDim.x-th item: of a tile in few parts, 8 rows, two warps each; of a tile in many, one row, whose parts eight
 * pairs of warps share. A thread has 8 neighbouring elements of PartialTile::out.
 */
#pragma once

#include "common/record.h"
#include "result.cuh"
#include "warp.cuh"
#include "workspace.cuh"

namespace kdtree {

constexpr int kMergeThreads = 512;
constexpr int kMergeWarps = kMergeThreads / 32;
constexpr int kMergeCtasPerMultiprocessor = 2;
constexpr int kMergeElements = 8;  // of a thread, 16 bytes
constexpr int kRowThreads = KDTREE_V_DIM / kMergeElements;
constexpr int kMergeGroups = kMergeThreads / kRowThreads;
static_assert(kMaxCtas <= kMergeThreads, "one thread scans one report");

/* A tile in more parts than this gives a row's parts to all warps of a CTA. */
constexpr int kFewParts = 8;
/* Parts of a row that a thread loads at once, before it knows what they weigh. */
constexpr int kEarlyParts = 8;

struct MergeShared {
  int warp_items[kMergeWarps];
  unsigned long long refused;
  CtaReport report;        // which tells of the tile
  int cta, item;           // whose it is, and which of the tile's items is next
  float weight[kMaxCtas];  // of each part of a row
  float sum;               // the row's denominator
  float group[kMergeGroups][KDTREE_V_DIM];
};

__device__ __forceinline__ int items_of(const CtaReport& report) {
  return report.parts <= kFewParts ? (report.rows + kMergeGroups - 1) / kMergeGroups : report.rows;
}

__device__ __forceinline__ const PartialTile& part_of(const Workspace& workspace, int cta, int part) {
  return part == 0 ? workspace.tail(cta) : workspace.front(cta + part);
}

/* What a row's parts weigh, 2^(their maximum - the row's), stored as store(part, weight); one warp does it together.
 * Returns the row's denominator. */
template <typename StoreWeight>
__device__ __forceinline__ float weigh_parts(const Workspace& workspace, int cta, int parts, int row,
                                             StoreWeight store) {
  const int lane = threadIdx.x % 32;
  const auto stats = [&](int i) {
    return i < parts ? part_of(workspace, cta, i).stats[row] : make_float2(-INFINITY, kNothingSeen);
  };
  const float2 first = stats(lane), second = stats(lane + 32);  // more parts than 64 are rare
  float highest = fmaxf(first.x, second.x), sum = kNothingSeen;
  for (int i = lane + 64; i < parts; i += 32) highest = fmaxf(highest, stats(i).x);
  highest = warp_all(highest, [](float a, float b) { return fmaxf(a, b); });
  const float shift = highest == -INFINITY ? 0.f : highest;
  for (int i = lane; i < parts; i += 32) {
    const float2 part = i < 32 ? first : i < 64 ? second : stats(i);
    const float weight = exp2_fast(part.x - shift);
    sum += weight * part.y;
    store(i, weight);
  }
  return warp_all(sum, [](float a, float b) { return a + b; });
}

/* 8 elements of a row's part, as they lie in the workspace, and what they are multiplied by besides the weight. */
struct Elements {
  uint4 halves;
  float scale;
};

__device__ __forceinline__ Elements load_elements(const Workspace& workspace, int cta, int part, int row, int place) {
  const PartialTile& tile = part_of(workspace, cta, part);
  return {reinterpret_cast<const uint4*>(tile.out[row])[place],
          tile.scale[row][place / (kRowThreads / kGroupWarps)]};
}

__device__ __forceinline__ void add_weighted(float (&sum)[kMergeElements], const Elements& elements, float weight) {
  const uint32_t halves[4] = {elements.halves.x, elements.halves.y, elements.halves.z, elements.halves.w};
  weight *= elements.scale;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_f16(halves[i]);
    sum[2 * i] += weight * pair.x;
    sum[2 * i + 1] += weight * pair.y;
  }
}

__device__ __forceinline__ void store_merged(uint16_t* row, int place, const float (&sum)[kMergeElements],
                                             float scale) {
#pragma unroll
  for (int i = 0; i < kMergeElements; i += 2)
    *reinterpret_cast<uint32_t*>(row + partial_column(place * kMergeElements + i)) =
        pack_bf16(sum[i] * scale, sum[i + 1] * scale);
}

/* One row of a tile in few parts, by two warps, each of which weighs the parts for itself. */
__device__ __forceinline__ void merge_few(const kdtree_verify_args& args, const Workspace& workspace,
                                          const CtaReport& report, int cta, int row) {
  if (row >= report.rows) return;
  const int place = threadIdx.x % kRowThreads, parts = report.parts;
  Elements early[kFewParts];
#pragma unroll
  for (int i = 0; i < kFewParts; ++i)
    if (i < parts) early[i] = load_elements(workspace, cta, i, row, place);
  float mine = 0.f;  // the weight of part `lane`
  const float total = weigh_parts(workspace, cta, parts, row, [&](int i, float weight) {
    if (i < 32) mine = weight;
  });
  float sum[kMergeElements] = {};
#pragma unroll
  for (int i = 0; i < kFewParts; ++i) {
    const float weight = __shfl_sync(~0u, mine, i);
    if (i < parts) add_weighted(sum, early[i], weight);
  }
  store_merged(result_row(args, report.token, report.first_row + row), place, sum, reciprocal(total));
}

/* One row of a tile in many parts, by all threads. */
__device__ __forceinline__ void merge_many(MergeShared& shared, const kdtree_verify_args& args,
                                           const Workspace& workspace, int cta, int row) {
  const CtaReport& report = shared.report;
  const int parts = report.parts;
  const int group = threadIdx.x / kRowThreads, place = threadIdx.x % kRowThreads;
  Elements early[kEarlyParts];
#pragma unroll
  for (int e = 0; e < kEarlyParts; ++e)
    if (group + e * kMergeGroups < parts)
      early[e] = load_elements(workspace, cta, group + e * kMergeGroups, row, place);
  if (threadIdx.x < 32) {
    const float total =
        weigh_parts(workspace, cta, parts, row, [&](int part, float weight) { shared.weight[part] = weight; });
    if (threadIdx.x == 0) shared.sum = total;
  }
  __syncthreads();
  float sum[kMergeElements] = {};
#pragma unroll
  for (int e = 0; e < kEarlyParts; ++e)
    if (group + e * kMergeGroups < parts) add_weighted(sum, early[e], shared.weight[group + e * kMergeGroups]);
#pragma unroll 2
  for (int i = group + kEarlyParts * kMergeGroups; i < parts; i += kMergeGroups)
    add_weighted(sum, load_elements(workspace, cta, i, row, place), shared.weight[i]);
#pragma unroll
  for (int i = 0; i < kMergeElements; ++i) shared.group[group][i * kRowThreads + place] = sum[i];
  __syncthreads();
  if (group != 0) return;
#pragma unroll
  for (int i = 0; i < kMergeElements; ++i) {
#pragma unroll
    for (int g = 1; g < kMergeGroups; ++g) sum[i] += shared.group[g][i * kRowThreads + place];
  }
  store_merged(result_row(args, report.token, report.first_row + row), place, sum, reciprocal(shared.sum));
}

extern "C" __global__ void __launch_bounds__(kMergeThreads)
    kdtree_merge(const __grid_constant__ kdtree_verify_args args, const __grid_constant__ Workspace workspace,
                 int ctas) {
  __shared__ MergeShared shared;
  launch_dependents();
  wait_for_dependency();
  const int warp = threadIdx.x / 32;
  const bool reports = threadIdx.x < ctas;
  CtaReport own = {};
  if (reports) {
    const CtaReport& report = workspace.reports[threadIdx.x];
    own.rows = report.rows, own.parts = report.parts;
    own.refused = report.refused, own.query_rows = report.query_rows;
    if (own.parts > 0) own.token = report.token, own.first_row = report.first_row;  // else nobody wrote them
  }
  const int items = items_of(own);
  const bool records = blockIdx.x == 0 && args.record != nullptr;
  if (threadIdx.x == 0) shared.refused = 0;

  const int upto = warp_prefix_sum(items);
  if (threadIdx.x % 32 == 31) shared.warp_items[warp] = upto;
  __syncthreads();
  if (records && reports)
    atomicAdd(&shared.refused, static_cast<unsigned long long>(own.refused));
  int before = upto - items, total = 0;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) {
    if (w < warp) before += shared.warp_items[w];
    total += shared.warp_items[w];
  }

  for (int i = blockIdx.x; i < total; i += gridDim.x) {
    if (i >= before && i < before + items) shared.report = own, shared.cta = threadIdx.x, shared.item = i - before;
    __syncthreads();
    if (shared.report.parts <= kFewParts)
      merge_few(args, workspace, shared.report, shared.cta, shared.item * kMergeGroups + threadIdx.x / kRowThreads);
    else
      merge_many(shared, args, workspace, shared.cta, shared.item);
    __syncthreads();
  }

  __syncthreads();
  if (records && threadIdx.x == 0)
    add_verify(args.record, args.mirror, own.query_rows, shared.refused);
}

}  // namespace kdtree

/* Joins the parts of tiles that several CTAs walked, by log-sum-exp, and adds the call to the layer's record.
 *
 * Grid.  A fixed number of CTAs of 16 warps. Every CTA finds the work by a scan of the reports and takes each
 * gridDim.x-th item: of a tile in few parts, 16 rows, a warp each; of a tile in many, one row, whose parts the warps
 * share, four at a time on 128 of the 512 columns each.
 */
#pragma once

#include "common/record.h"
#include "scores.cuh"
#include "warp.cuh"
#include "workspace.cuh"

namespace kdtree {

constexpr int kMergeThreads = 512;
constexpr int kMergeWarps = kMergeThreads / 32;
constexpr int kMergeCtasPerMultiprocessor = 2;
constexpr int kMergeColumns = KDTREE_V_DIM / 4;
constexpr int kMergeGroups = kMergeThreads / kMergeColumns;
static_assert(kMaxCtas <= kMergeThreads, "one thread scans one report");

/* 1/x; 0 for the denominator of a row that saw no key (kNothingSeen). */
__device__ __forceinline__ float reciprocal(float x) { return x == 0.f && signbit(x) ? 0.f : reciprocal_fast(x); }

/* Where row `row` of a request's (token, head) rows lies in `out`. */
__device__ __forceinline__ uint16_t* result_row(const kdtree_verify_args& args, int64_t first_token, int row) {
  const int token = row / args.num_heads, head = row - token * args.num_heads;
  return static_cast<uint16_t*>(args.out) + (first_token + token) * args.out_stride_token + head * args.out_stride_head;
}

/* A tile in more parts than this gives a row's parts to all warps of a CTA. */
constexpr int kFewParts = 8;
static_assert(kFewParts <= 32, "a lane a part");

struct MergeShared {
  int warp_items[kMergeWarps];
  unsigned long long refused;
  int cta, item;           // whose report tells of the tile, and which of the tile's items is next
  float weight[kMaxCtas];  // of each part of a row
  float sum;               // the row's denominator
  float4 group[kMergeGroups][kMergeColumns];
};

__device__ __forceinline__ int items_of(const CtaReport& report) {
  return report.parts <= kFewParts ? (report.rows + kMergeWarps - 1) / kMergeWarps : report.rows;
}

__device__ __forceinline__ const PartialTile& part_of(const Workspace& workspace, int cta, int part) {
  return part == 0 ? workspace.tail(cta) : workspace.front(cta + part);
}

/* The factors of a row's parts, 2^(its maximum - the row's), stored as store(part, factor); one warp does it together.
 * Returns the row's denominator. */
template <typename StoreWeight>
__device__ __forceinline__ float weigh_parts(const Workspace& workspace, int cta, int parts, int row,
                                             StoreWeight store) {
  const int lane = threadIdx.x % 32;
  float highest = -INFINITY, sum = kNothingSeen;
  for (int i = lane; i < parts; i += 32) highest = fmaxf(highest, part_of(workspace, cta, i).max[row]);
  highest = warp_all(highest, [](float a, float b) { return fmaxf(a, b); });
  const float shift = highest == -INFINITY ? 0.f : highest;
  for (int i = lane; i < parts; i += 32) {
    const float weight = exp2_fast(part_of(workspace, cta, i).max[row] - shift);
    sum += weight * part_of(workspace, cta, i).sum[row];
    store(i, weight);
  }
  return warp_all(sum, [](float a, float b) { return a + b; });
}

__device__ __forceinline__ void add_weighted(float4& sum, const float4& part, float weight) {
  sum.x += weight * part.x, sum.y += weight * part.y, sum.z += weight * part.z, sum.w += weight * part.w;
}

__device__ __forceinline__ void store_merged(uint16_t* to, const float4& sum, float scale) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack_bf16(sum.x * scale, sum.y * scale), pack_bf16(sum.z * scale, sum.w * scale));
}

/* One row of a tile in few parts, by one warp. */
__device__ __forceinline__ void merge_few(const kdtree_verify_args& args, const Workspace& workspace, int cta,
                                          int row) {
  const CtaReport& report = workspace.reports[cta];
  if (row >= report.rows) return;
  const int lane = threadIdx.x % 32;
  float mine = 0.f;  // the factor of part `lane`
  const float total = weigh_parts(workspace, cta, report.parts, row, [&](int, float weight) { mine = weight; });
  constexpr int kVectors = kMergeColumns / 32;
  float4 sum[kVectors] = {};
#pragma unroll 2
  for (int i = 0; i < report.parts; ++i) {
    const float weight = __shfl_sync(~0u, mine, i);
    const float4* const part = reinterpret_cast<const float4*>(part_of(workspace, cta, i).out[row]) + lane;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) add_weighted(sum[v], part[32 * v], weight);
  }
  uint16_t* const to = result_row(args, report.token, report.first_row + row) + lane * 4;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) store_merged(to + 128 * v, sum[v], reciprocal(total));
}

/* One row of a tile in many parts, by all threads. */
__device__ __forceinline__ void merge_many(MergeShared& shared, const kdtree_verify_args& args,
                                           const Workspace& workspace, int cta, int row) {
  const CtaReport& report = workspace.reports[cta];
  if (threadIdx.x < 32) {
    const float total =
        weigh_parts(workspace, cta, report.parts, row, [&](int part, float weight) { shared.weight[part] = weight; });
    if (threadIdx.x == 0) shared.sum = total;
  }
  __syncthreads();
  const int group = threadIdx.x / kMergeColumns, column = threadIdx.x % kMergeColumns;
  float4 sum = {};
#pragma unroll 4
  for (int i = group; i < report.parts; i += kMergeGroups)
    add_weighted(sum, reinterpret_cast<const float4*>(part_of(workspace, cta, i).out[row])[column], shared.weight[i]);
  shared.group[group][column] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int i = 1; i < kMergeGroups; ++i) add_weighted(sum, shared.group[i][column], 1.f);
  store_merged(result_row(args, report.token, report.first_row + row) + column * 4, sum, reciprocal(shared.sum));
}

extern "C" __global__ void __launch_bounds__(kMergeThreads)
    kdtree_merge(const __grid_constant__ kdtree_verify_args args, const Workspace workspace, int ctas) {
  __shared__ MergeShared shared;
  const int warp = threadIdx.x / 32;
  const bool reports = threadIdx.x < ctas;
  const int items = reports ? items_of(workspace.reports[threadIdx.x]) : 0;
  const bool records = blockIdx.x == 0 && args.record != nullptr;
  if (threadIdx.x == 0) shared.refused = 0;

  const int upto = warp_prefix_sum(items);
  if (threadIdx.x % 32 == 31) shared.warp_items[warp] = upto;
  __syncthreads();
  if (records && reports)
    atomicAdd(&shared.refused, static_cast<unsigned long long>(workspace.reports[threadIdx.x].refused));
  int before = upto - items, total = 0;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) {
    if (w < warp) before += shared.warp_items[w];
    total += shared.warp_items[w];
  }

  for (int i = blockIdx.x; i < total; i += gridDim.x) {
    if (i >= before && i < before + items) shared.cta = threadIdx.x, shared.item = i - before;
    __syncthreads();
    if (workspace.reports[shared.cta].parts <= kFewParts)
      merge_few(args, workspace, shared.cta, shared.item * kMergeWarps + warp);
    else
      merge_many(shared, args, workspace, shared.cta, shared.item);
    __syncthreads();
  }

  __syncthreads();
  if (records && threadIdx.x == 0)
    add_verify(args.record, args.mirror, workspace.reports[0].query_rows, shared.refused);
}

}  // namespace kdtree

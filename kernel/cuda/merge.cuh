/* Joins the parts of tiles that several CTAs walked, by log-sum-exp, and adds the call to the layer's record.
 *
 * Grid.  A fixed number of CTAs; a work item is one row of one split tile. Every CTA finds the items by a scan of the
 * reports and takes each gridDim.x-th. Four groups of 128 threads take every fourth part each; a thread has 4 columns.
 */
#pragma once

#include "common/record.h"
#include "scores.cuh"
#include "workspace.cuh"

namespace kdtree {

constexpr int kMergeThreads = 512;
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

/* One row of a split tile. */
struct MergeItem {
  int cta;  // whose report tells of the tile
  int row;  // of the tile
};

struct MergeShared {
  int warp_rows[kMergeThreads / 32];
  unsigned long long refused;
  MergeItem item;
  float weight[kMaxCtas];  // first each part's maximum, then 2^(its maximum - the row's)
  float sum;
  float4 group[kMergeGroups][kMergeColumns];
};

__device__ __forceinline__ const PartialTile& part_of(const Workspace& workspace, int cta, int part) {
  return part == 0 ? workspace.tail(cta) : workspace.front(cta + part);
}

/* Fills shared.weight and shared.sum for one row; all threads call it together. */
__device__ __forceinline__ void weigh_parts(MergeShared& shared, const Workspace& workspace, MergeItem item, int parts) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < parts; i += kMergeThreads) shared.weight[i] = part_of(workspace, item.cta, i).max[item.row];
  __syncthreads();
  if (threadIdx.x < 32) {
    float highest = -INFINITY, sum = kNothingSeen;
    for (int i = lane; i < parts; i += 32) highest = fmaxf(highest, shared.weight[i]);
    for (int distance = 16; distance > 0; distance /= 2)
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, distance));
    const float shift = highest == -INFINITY ? 0.f : highest;
    for (int i = lane; i < parts; i += 32) {
      const float weight = exp2_fast(shared.weight[i] - shift);
      shared.weight[i] = weight;
      sum += weight * part_of(workspace, item.cta, i).sum[item.row];
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) shared.sum = sum;
  }
  __syncthreads();
}

/* Adds the parts of one row up and stores the row; all threads call it together. */
__device__ __forceinline__ void merge_row(MergeShared& shared, const kdtree_verify_args& args, const Workspace& workspace,
                                          MergeItem item) {
  const CtaReport& report = workspace.reports[item.cta];
  weigh_parts(shared, workspace, item, report.parts);
  const int group = threadIdx.x / kMergeColumns, column = threadIdx.x % kMergeColumns;
  float4 sum = {};
#pragma unroll 4
  for (int i = group; i < report.parts; i += kMergeGroups) {
    const float4 part = reinterpret_cast<const float4*>(part_of(workspace, item.cta, i).out[item.row])[column];
    const float weight = shared.weight[i];
    sum.x += weight * part.x, sum.y += weight * part.y, sum.z += weight * part.z, sum.w += weight * part.w;
  }
  shared.group[group][column] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int i = 1; i < kMergeGroups; ++i) {
    const float4 other = shared.group[i][column];
    sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
  }
  const float scale = reciprocal(shared.sum);
  uint16_t* const to = result_row(args, report.token, report.first_row + item.row) + column * 4;
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack_bf16(sum.x * scale, sum.y * scale), pack_bf16(sum.z * scale, sum.w * scale));
}

extern "C" __global__ void __launch_bounds__(kMergeThreads)
    kdtree_merge(const __grid_constant__ kdtree_verify_args args, const Workspace workspace, int ctas) {
  __shared__ MergeShared shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool reports = threadIdx.x < ctas;
  const int rows = reports ? workspace.reports[threadIdx.x].rows : 0;
  const bool records = blockIdx.x == 0 && args.record != nullptr;
  if (threadIdx.x == 0) shared.refused = 0;

  int upto = rows;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, upto, distance);
    if (lane >= distance) upto += other;
  }
  if (lane == 31) shared.warp_rows[warp] = upto;
  __syncthreads();
  if (records && reports) atomicAdd(&shared.refused, static_cast<unsigned long long>(workspace.reports[threadIdx.x].refused));
  int before = upto - rows, total = 0;
#pragma unroll
  for (int w = 0; w < kMergeThreads / 32; ++w) {
    if (w < warp) before += shared.warp_rows[w];
    total += shared.warp_rows[w];
  }

  for (int i = blockIdx.x; i < total; i += gridDim.x) {
    if (i >= before && i < before + rows) shared.item = {static_cast<int>(threadIdx.x), i - before};
    __syncthreads();
    merge_row(shared, args, workspace, shared.item);
    __syncthreads();
  }

  __syncthreads();
  if (records && threadIdx.x == 0) add_verify(args.record, args.mirror, workspace.reports[0].query_rows, shared.refused);
}

}  // namespace kdtree

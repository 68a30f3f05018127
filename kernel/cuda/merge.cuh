/* Joins the parts of tiles that several CTAs walked, by log-sum-exp, and adds the call to the layer's record.
 *
 * Grid.  A fixed number of CTAs of 8 pairs of warps, all of which fit on the device at once. Every CTA finds the work by
 * a scan of the reports and takes each gridDim.x-th item: a few rows of one tile. A thread has 8 neighbouring elements
 * of PartialTile::out, so that a pair has a row. The more parts a tile is in, the more pairs share a row's: most often
 * no thread loads more than 8, which it does at once.
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
constexpr int kPairs = kMergeThreads / kRowThreads;
static_assert(kRowThreads == 64, "a pair of warps");
static_assert(kMaxCtas <= kMergeThreads, "one thread scans one report");
static_assert(kMaxCtas <= kPairs * 32, "each lane weighs one of a pair's parts");

/* Parts of a row that a thread loads at once, the first ones before it knows what they weigh. */
constexpr int kAtOnce = 8;

struct MergeShared {
  int warp_items[kMergeWarps];
  int upto[kMergeThreads];  // items of the reports up to this one
  unsigned long long refused;
  CtaReport reports[kMaxCtas];
  volatile int cta, item;  // whose report tells of the tile, and which of its items; read anew, for registers' sake
  float2 stats[kPairs];  // of each pair's parts together, as of a part
  float sum[kPairs][KDTREE_V_DIM];
};

/* How many pairs share a row that is in so many parts, as a power of two. */
__device__ __forceinline__ int team_log2(int parts) {
  return parts <= kAtOnce ? 0 : parts <= 2 * kAtOnce ? 1 : parts <= 4 * kAtOnce ? 2 : 3;
}
static_assert(kPairs == 1 << 3);

__device__ __forceinline__ int items_of(const CtaReport& report) {
  const int rows = kPairs >> team_log2(report.parts);  // of an item
  return (report.rows + rows - 1) / rows;
}

/* What a part's maximum is taken relative to: where nothing has been seen, weights shall be 0 and not NaN. */
__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0.f : max; }

/* What one warp knows of its pair's parts of a row, first + i * step for i = 0 .. count-1; lane i of the i-th. */
class Parts {
 public:
  __device__ __forceinline__ Parts(const Workspace& workspace, int cta, int row, int first, int step, int count)
      : tiles_(&workspace.front(cta + first)), row_(row), tail_(first == 0), step_(2 * step), count_(count) {}

  __device__ __forceinline__ int count() const { return count_; }

  /* This thread's 8 elements of part i, as they lie in the workspace. */
  __device__ __forceinline__ uint4 elements(int i) const {
    return reinterpret_cast<const uint4*>(part(i).out[row_])[threadIdx.x % kRowThreads];
  }

  /* Finds what parts weigh, 2^(their maximum - that of all of them); returns that maximum and their denominator. */
  __device__ __forceinline__ float2 weigh() {
    const bool mine = lane_id() < count_;
    const float2 stats = mine ? part(lane_id()).stats[row_] : make_float2(-INFINITY, kNothingSeen);
    if (mine) scale_ = *reinterpret_cast<const float2*>(&part(lane_id()).scale[row_][threadIdx.x % kRowThreads / 32 * 2]);
    const float max = warp_all(stats.x, [](float a, float b) { return fmaxf(a, b); });
    const float weight = exp2_fast(stats.x - shift_of(max)), sum = weight * stats.y;
    scale_.x *= weight, scale_.y *= weight;
    return make_float2(max, warp_all(sum, [](float a, float b) { return a + b; }));
  }

  /* Adds part i's elements; all of the warp's lanes together. */
  __device__ __forceinline__ void add(float (&sum)[kMergeElements], int i, const uint4& elements) const {
    const float left = __shfl_sync(~0u, scale_.x, i), right = __shfl_sync(~0u, scale_.y, i);
    const float weight = lane_id() < 16 ? left : right;  // a warp has elements of two of the compute warps
    const uint32_t halves[4] = {elements.x, elements.y, elements.z, elements.w};
#pragma unroll
    for (int p = 0; p < kMergeElements / 2; ++p) {
      const float2 pair = unpack_f16(halves[p]);
      sum[2 * p] += weight * pair.x;
      sum[2 * p + 1] += weight * pair.y;
    }
  }

 private:
  /* The tail of the first CTA, the fronts of the others. */
  __device__ __forceinline__ const PartialTile& part(int i) const {
    return tiles_[i * step_ + (i == 0 ? tail_ : 0)];
  }

  const PartialTile* const tiles_;
  const int row_, tail_, step_, count_;
  float2 scale_ = {};  // the weight, and what elements of either compute warp are multiplied by besides
};
static_assert(kWarpCols == 16 * kMergeElements, "half a warp has one compute warp's");

/* An item; all threads together. */
__device__ __forceinline__ void merge_rows(MergeShared& shared, const kdtree_verify_args& args,
                                           const Workspace& workspace) {
  const auto report = [&]() -> const CtaReport& { return shared.reports[shared.cta]; };
  const int log2 = team_log2(report().parts), team = 1 << log2;
  const int pair = threadIdx.x / kRowThreads, first = pair % team;
  const auto row = [&] { return shared.item * (kPairs >> log2) + (pair >> log2); };
  const auto exists = [&] { return row() < report().rows; };
  float sum[kMergeElements] = {};
  float2 stats = {};
  if (exists()) {
    Parts parts(workspace, shared.cta, row(), first, team, (report().parts - first + team - 1) >> log2);
    uint4 early[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (i < parts.count()) early[i] = parts.elements(i);
    stats = parts.weigh();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (i < parts.count()) parts.add(sum, i, early[i]);
#pragma unroll 1
    for (int i = kAtOnce; i < parts.count(); ++i) parts.add(sum, i, parts.elements(i));
  }
  const auto result = [&] { return result_row(args, report().token, report().first_row + row()); };
  const int place = threadIdx.x % kRowThreads;
  if (team == 1) {
    const float scale = reciprocal(stats.y);
    uint32_t packed[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) packed[p] = pack_bf16(sum[2 * p] * scale, sum[2 * p + 1] * scale);
    transpose_quads(packed);
    // Of a quad's four column tiles this lane has the lane % 4 th now.
    if (exists())
      *reinterpret_cast<uint4*>(result() + partial_column(place / 4 * 32) + place % 4 * 8) =
          make_uint4(packed[0], packed[1], packed[2], packed[3]);
    return;
  }
  if (place == 0) shared.stats[pair] = stats;
  float4* const own = reinterpret_cast<float4*>(&shared.sum[pair][place * kMergeElements]);
  own[0] = make_float4(sum[0], sum[1], sum[2], sum[3]), own[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
  __syncthreads();
  if (!exists()) return;
  uint16_t* const to = result();
  // Each eight lanes know all pairs of the team, and so what the sums of each weigh in the row.
  const int other = lane_id() % kPairs;
  const float2 theirs = other < team ? shared.stats[pair - first + other] : make_float2(-INFINITY, kNothingSeen);
  float highest = theirs.x;
  for (int i = 1; i < kPairs; i *= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, i));
  const float factor = exp2_fast(theirs.x - shift_of(highest));
  float total = factor * theirs.y;
  for (int i = 1; i < kPairs; i *= 2) total += __shfl_xor_sync(~0u, total, i);
  const float share = factor * reciprocal(total);
  for (int at = (first * kRowThreads + place) * 2; at < KDTREE_V_DIM; at += team * kRowThreads * 2) {
    float left = 0.f, right = 0.f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float weight = __shfl_sync(~0u, share, i);
      if (i >= team) continue;
      const float2 both = *reinterpret_cast<const float2*>(&shared.sum[pair - first + i][at]);
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
    const int cta = anew(threadIdx.x), before = cta == 0 ? 0 : shared.upto[cta - 1];
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

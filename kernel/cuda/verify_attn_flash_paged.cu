/* Tree-verify attention for absorbed MLA over a paged pool: flash-style, split over the keys.
 *
 * Grid.  One CTA of 8 warps per multiprocessor. The keys of a request are its prefix (pool rows, gathered by
 * kv_indices, seen by all) and then its draft tokens (k and v, seen as the tree mask says), in blocks of 32; its rows
 * are tokens x heads, in tiles of 64. plan.cuh numbers the (request, row tile, key block) units and gives each CTA an
 * equal share of consecutive ones, from the indptrs, on the device: one captured graph serves every length, and cost
 * follows the lengths.
 *
 * Data flow of a CTA, for each segment (a tile's blocks that are its own):
 *   pool, k, v --cp.async--> two stages of 32 rows (loader.cuh)
 *   Q --> registers, split over the warps by rows and columns; S = Q K^T in parts, exchanged through shared memory so
 *         that each warp owns 8 whole rows; softmax; P to shared memory in bf16 (scores.cuh)
 *   O += P V, float32 in registers, split over the warps by columns (values.cuh). V is the stage K was read from; only
 *         draft tokens have values of their own, in a stage of their own.
 *   A tile that was walked whole goes to `out`; a part of one to the workspace (workspace.cuh), and the merge kernel
 *   (merge.cuh) joins the parts by log-sum-exp.
 * Nothing depends on which CTA runs first: results are bitwise repeatable.
 *
 * A step of one stage, by all warps (barriers marked |):
 *   wait for the stage | fetch the next one; partial S | add up, softmax, P | O += P V
 *
 * Only what sm_120 has is used: mma.sync, ldmatrix, cp.async, 99 KB of shared memory.
 */
#include "launch.h"
#include "loader.cuh"
#include "merge.cuh"
#include "values.cuh"

namespace kdtree {
namespace {

__device__ __forceinline__ unsigned char* stage_of(unsigned char* shared, int step) {
  return shared + Shared::kStages + step % 2 * Shared::kStageBytes;
}

/* What is left to scale O by: v_scale, where no draft step did it. */
__device__ __forceinline__ float last_carry(const kdtree_verify_args& args, const Segment& segment) {
  return segment.steps == segment.prefix_steps ? args.v_scale : 1.f;
}

__device__ __forceinline__ void store_result(const kdtree_verify_args& args, const Segment& segment,
                                             const Output& output, const unsigned char* shared) {
  const float* const sums = reinterpret_cast<const float*>(shared + Shared::kSum);
  output.for_each_row([&](int row, int column, const float (&pairs)[8][2]) {
    if (row >= segment.rows) return;
    const float scale = reciprocal(sums[row]) * last_carry(args, segment);
    uint16_t* const to = result_row(args, segment.request.row, segment.first_row + row) + column;
#pragma unroll
    for (int n = 0; n < 8; ++n)
      *reinterpret_cast<uint32_t*>(to + n * 8) = pack_bf16(pairs[n][0] * scale, pairs[n][1] * scale);
  });
}

__device__ __forceinline__ void store_partial(const kdtree_verify_args& args, PartialTile& tile, const Segment& segment,
                                              const Output& output, const unsigned char* shared) {
  const float scale = last_carry(args, segment);
  output.for_each_row([&](int row, int column, const float (&pairs)[8][2]) {
    if (row >= segment.rows) return;
#pragma unroll
    for (int n = 0; n < 8; ++n)
      *reinterpret_cast<float2*>(&tile.out[row][column + n * 8]) =
          make_float2(pairs[n][0] * scale, pairs[n][1] * scale);
  });
  const auto [lane, warp] = this_thread();
  const int row = warp * 32 + lane;
  if (row < segment.rows) {
    tile.max[row] = reinterpret_cast<const float*>(shared + Shared::kMax)[row];
    tile.sum[row] = reinterpret_cast<const float*>(shared + Shared::kSum)[row];
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    kdtree_attend_m64n32(const __grid_constant__ kdtree_verify_args args, const Workspace workspace) {
  extern __shared__ __align__(128) unsigned char shared[];
  Plan& plan = *reinterpret_cast<Plan*>(shared + Shared::kPlan);
  Segment& segment = *reinterpret_cast<Segment*>(shared + Shared::kSegment);
  CtaReport& report = workspace.reports[blockIdx.x];

  if (first_thread()) report.rows = report.parts = 0;
  share_out(args, plan);
  while (true) {
    __syncthreads();  // everyone is done with the last segment
    if (first_thread()) next_segment(args, plan, segment);
    __syncthreads();
    if (segment.steps == 0) break;

    Loader loader(args, segment, shared, &plan.refused);
    loader.fetch_slots(0);
    copy_wait();
    loader.fetch_rows(0);
    loader.fetch_slots(1);
    QueryFragment query;
    query.load(args, segment);
    clear_softmax(shared);
    Output output;
    output.clear();

#pragma unroll 1
    for (int step = 0; step < segment.steps; ++step) {
      copy_wait();
      __syncthreads();  // the stage is filled, and the other one read by all
      if (step + 1 < segment.steps) {
        loader.fetch_rows(step + 1);
        loader.fetch_slots(step + 2);
      }
      const Step kind = segment.kind(step);
      bool rescale = true;  // of draft values, always: whether it is needed was known a step ago
      if (kind != Step::kDraftValues) {
        const bool prefix = kind == Step::kPrefix;
        mark_visible(args, segment, step, shared);
        const OwnScores own = multiply_keys(query, stage_of(shared, step), shared);
        __syncthreads();
        const float scale = prefix ? args.sm_scale * args.k_scale : args.sm_scale;
        // O is in units of v_scale while it holds prefix values only: P stays free of it, and exact where it is 1.
        const float carry = step == segment.prefix_steps ? args.v_scale : 1.f;
        const bool changed = update_softmax(own, all_visible(segment, step, shared), scale * kLog2E, carry, shared);
        rescale = __syncthreads_or(changed);
      }
      if (kind != Step::kDraftKeys) {
        unsigned char* const stage = stage_of(shared, anew(step));
        if (rescale) output.rescale(shared);
        if (kind == Step::kDraftValues) output.take_nonfinite(stage, shared);
        output.add(stage, shared);
      }
    }

    if (segment.opens && segment.closes)
      store_result(args, segment, output, shared);
    else
      store_partial(args, segment.opens ? workspace.tail(blockIdx.x) : workspace.front(blockIdx.x), segment, output,
                    shared);
    if (segment.parts > 0 && first_thread()) {
      report.token = segment.request.row;
      report.first_row = segment.first_row;
      report.rows = segment.rows;
      report.parts = segment.parts;
    }
  }
  if (first_thread()) {
    report.refused = plan.refused;
    report.query_rows = plan.query_rows;
  }
}

const Entry kAttend = {"kdtree_attend_m64n32", reinterpret_cast<const void*>(kdtree_attend_m64n32), kThreads,
                       Shared::kBytes};
const Entry kMerge = {"kdtree_merge", reinterpret_cast<const void*>(kdtree_merge), kMergeThreads, 0};

uint64_t verify_workspace_bytes(int multiprocessors) { return Workspace::bytes(multiprocessors); }

int launch_verify(const kdtree_verify_args& args, int multiprocessors) {
  int ctas = multiprocessors;
  Workspace workspace(args.workspace, ctas);
  kdtree_verify_args copy = args;
  void* attend[] = {&copy, &workspace};
  const int status = launch(kAttend, ctas, args.stream, attend);
  if (status != KDTREE_OK) return status;
  void* merge[] = {&copy, &workspace, &ctas};
  return launch(kMerge, kMergeCtasPerMultiprocessor * multiprocessors, args.stream, merge);
}

}  // namespace kdtree

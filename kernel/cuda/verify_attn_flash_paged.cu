/* Tree-verify attention for absorbed MLA over a paged pool: flash-style, split over the keys.
 *
 * Grid.  One CTA of 12 warps per multiprocessor. The keys of a request are its prefix (pool rows, gathered by
 * kv_indices, seen by all) and then its draft tokens (k and v, seen as the tree mask says), in blocks of 32; its rows
 * are tokens x heads, in tiles of 64. plan.cuh numbers the (request, row tile, key block) units and gives each CTA a
 * share of consecutive ones, from the indptrs, on the device: one captured graph serves every length, and cost
 * follows the lengths.
 *
 * Roles and data flow of a CTA, for each segment (a tile's blocks that are its own):
 *   warps 0-3, loaders (loader.cuh):  pool, k, v --bulk copies--> two stages of 32 rows; fp8 rows widened to float16 there
 *   warps 4-7 and 8-11, two groups of 32 of the tile's rows each (group.cuh):
 *     Q --> registers, split over the group's warps by columns; S = Q K^T in parts, exchanged through
 *           shared memory so that each warp owns 8 whole rows; softmax; P to shared memory (scores.cuh)
 *     O += P V, float32 in registers, split over the group's warps by columns (values.cuh). V is the stage K was read
 *           from; only draft tokens have values of their own, in a stage of their own.
 *   A tile that was walked whole goes to `out`; a part of one to the workspace (workspace.cuh), and the merge kernel
 *   (merge.cuh) joins the parts by log-sum-exp.
 * The groups share stages and segments, and nothing else: while one does its softmax the other multiplies. Who waits
 * for whom is in barriers.cuh. Each launch overlaps the end of the one before it. Nothing depends on which CTA or group
 * runs first: results are bitwise repeatable.
 *
 * A step of one stage, by a group (barriers marked |, all of them the group's own but the first two):
 *   stage filled | its turn | partial S | add up, softmax, P | O += P V; stage read
 * and by one that has no rows of the tile (the second, where a tile is of 32 rows or fewer): it hands its turn on, and
 * says that it has read the stage.
 *
 * Only what sm_120 has is used: mma.sync, ldmatrix, bulk copies, setmaxnreg, 99 KB of shared memory.
 */
#include "group.cuh"
#include "launch.h"
#include "loader.cuh"
#include "merge.cuh"

namespace kdtree {
namespace {

template <bool fp8_pool>
__device__ __forceinline__ void attend(const kdtree_verify_args& args, const Workspace& workspace) {
  extern __shared__ __align__(128) unsigned char shared[];
  Plan& plan = plan_of(shared);

  launch_dependents();
  if (threadIdx.x == 0) plan.refused = plan.query_rows = 0;
  if (threadIdx.x == kThreads - 1) init_signals(shared);
  wait_for_dependency();  // what comes first above touches nothing that others may still read or write
  if (threadIdx.x == 0) report_of(workspace) = CtaReport{};
  __syncthreads();
  RequestSize* const sizes = reinterpret_cast<RequestSize*>(shared + Shared::kStages);
  const Request own = measure(args, plan, sizes);
  fence_stores_before_bulk_copies();
  __syncthreads();
  if (threadIdx.x / 32 == kPlanningWarp) {
    share_out(args, plan, sizes, own);
    if (lane_id() == 0) describe(args, plan, segment_of(shared, 0), report_of(workspace));
    tell(shared, Signal::kDescribed, 0);
  }
  if (threadIdx.x < kLoaderThreads) {
    give_registers<kLoaderRegisters>();
    Loader<fp8_pool>(args, plan, shared).run();
    barrier_sync(kLoaderBarrier, kLoaderThreads);
    if (threadIdx.x == 0) {
      CtaReport& report = report_of(workspace);
      report.refused = plan.refused;
      report.query_rows = plan.query_rows;
    }
  } else {
    take_registers<kComputeRegisters>();
    Group<fp8_pool>(args, workspace, shared).run();
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    kdtree_attend_m64n32(const __grid_constant__ kdtree_verify_args args, const __grid_constant__ Workspace workspace) {
  attend<false>(args, workspace);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    kdtree_attend_m64n32_fp8(const __grid_constant__ kdtree_verify_args args,
                             const __grid_constant__ Workspace workspace) {
  attend<true>(args, workspace);
}

const Entry kAttend = {"kdtree_attend_m64n32", reinterpret_cast<const void*>(kdtree_attend_m64n32), kThreads,
                       Shared::kBytes};
const Entry kAttendFp8 = {"kdtree_attend_m64n32_fp8", reinterpret_cast<const void*>(kdtree_attend_m64n32_fp8), kThreads,
                          Shared::kBytes};
const Entry kMerge = {"kdtree_merge", reinterpret_cast<const void*>(kdtree_merge), kMergeThreads, 0};

uint64_t verify_workspace_bytes(int multiprocessors) { return Workspace::bytes(multiprocessors); }

int launch_verify(const kdtree_verify_args& args, int multiprocessors) {
  int ctas = multiprocessors;
  Workspace workspace(args.workspace, ctas);
  kdtree_verify_args copy = args;
  void* attend[] = {&copy, &workspace};
  const Entry& entry = args.pool_dtype == KDTREE_BF16 ? kAttend : kAttendFp8;
  const int status = launch(entry, ctas, args.stream, attend, Launch::kOverlapped);
  if (status != KDTREE_OK) return status;
  void* merge[] = {&copy, &workspace, &ctas};
  return launch(kMerge, kMergeCtasPerMultiprocessor * multiprocessors, args.stream, merge, Launch::kOverlapped);
}

}  // namespace kdtree

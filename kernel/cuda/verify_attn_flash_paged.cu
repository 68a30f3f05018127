/* Tree-verify attention for absorbed MLA over a paged pool: flash-style, split over the keys.
 *
 * Grid.  One CTA of 12 warps per multiprocessor. The keys of a request are its prefix (pool rows, gathered by
 * kv_indices, seen by all) and then its draft tokens (k and v, seen as the tree mask says), in blocks of 32; its rows
 * are tokens x heads, in tiles of 64. plan.cuh numbers the (request, row tile, key block) units and gives each CTA an
 * equal share of consecutive ones, from the indptrs, on the device: one captured graph serves every length, and cost
 * follows the lengths.
 *
 * Roles and data flow of a CTA, for each segment (a tile's blocks that are its own):
 *   warps 0-3, loaders (loader.cuh):  pool, k, v --bulk copies--> two stages of 32 rows; fp8 rows widened to bf16 there
 *   warps 4-7 and 8-11, two groups of 32 of the tile's rows each:
 *     Q --> a stage --> registers, split over the group's warps by columns; S = Q K^T in parts, exchanged through
 *           shared memory so that each warp owns 8 whole rows; softmax; P to shared memory in bf16 (scores.cuh)
 *     O += P V, float32 in registers, split over the group's warps by columns (values.cuh). V is the stage K was read
 *           from; only draft tokens have values of their own, in a stage of their own.
 *   A tile that was walked whole goes to `out`; a part of one to the workspace (workspace.cuh), and the merge kernel
 *   (merge.cuh) joins the parts by log-sum-exp.
 * The groups share stages and nothing else: while one does its softmax the other multiplies. Who waits for whom is in
 * barriers.cuh. Each launch overlaps the end of the one before it. Nothing depends on which CTA or group runs first:
 * results are bitwise repeatable.
 *
 * A step of one stage, by a group (barriers marked |, all of them the group's own but the first two):
 *   stage filled | its turn | partial S | add up, softmax, P | O += P V; stage read
 *
 * Only what sm_120 has is used: mma.sync, ldmatrix, bulk copies, setmaxnreg, 99 KB of shared memory.
 */
#include "launch.h"
#include "loader.cuh"
#include "merge.cuh"
#include "values.cuh"

namespace kdtree {
namespace {

__device__ __forceinline__ CtaReport& report_of(const Workspace& workspace) {
  return workspace.reports[anew(blockIdx.x)];
}

/* What a group computes: 32 rows of each segment's tile. */
class Group {
 public:
  __device__ __forceinline__ Group(const kdtree_verify_args& args, const Workspace& workspace, unsigned char* shared)
      : args_(args), workspace_(workspace), shared_(shared) {}

  __device__ __forceinline__ void run() const {
#pragma unroll 1
    while (true) {
      begin_segment(me_.group());
      if (segment().last) break;
      walk();
      end_segment(me_.group());
      if (me_.group() == 0 && me_.warp() == 0 && me_.lane() == 0)
        describe(args_, plan_of(shared_ + anew(0u)), segment(), report_of(workspace_));
    }
    if (me_.group() == 0 && segment().first_step > 0) wait_turn(0, false);  // that nobody's arrival is left over
  }

 private:
  __device__ __forceinline__ void walk() const {
    int count = uniform(segment().first_step);  // of steps so far
    QueryFragment query;
    load_queries(segment(), query, count);
    count += kQuerySteps;
    Output output;
    output.clear();
    Softmax softmax;
#pragma unroll 1
    for (; count < segment().prefix_end(); ++count) {
      Output::Values values;
      weigh_keys(query, output, softmax, values, count, args_.k_scale, 1.f, [&] { return prefix_keys(count); });
      output.add(values, me_, shared_address(shared_));
      tell_empty(shared_, count);
    }
    const int end = count + uniform(segment().draft_steps);
    float carry = args_.v_scale;  // O is in units of it while it holds prefix values only: P stays free of it
#pragma unroll 1
    for (; count < end; count += 2) {
      Output::Values values;
      weigh_keys(query, output, softmax, values, count, 1.f, carry, [&] { return draft_keys(); });
      carry = 1.f;
      tell_empty(shared_, count);
      wait_full(me_.group(), count + 1);
      if (stage_bits(count + 1) == 0) {
        values.begin(stage_address(count + 1), me_);
        output.add(values, me_, shared_address(shared_));
      } else {
        output.add_seen_only(shared_ + stage_offset(count + 1), shared_, me_);
      }
      tell_empty(shared_, count + 1);
    }
    if (me_.group() * kGroupRows < segment().rows) store(segment(), output, softmax, carry);
  }

  /* Found anew at each call: the step loops have no register for where it lies. */
  __device__ __forceinline__ Segment& segment() const { return segment_of(shared_ + anew(0u)); }

  /* By way of the stage of the group's number: both stages are empty. */
  __device__ __forceinline__ void load_queries(const Segment& segment, QueryFragment& query, int count) const {
    const Filler filler(shared_, me_.warp());
    const int stage = count + me_.group(), tile_row = me_.group() * kGroupRows + filler.row();
    const uint16_t* from = nullptr;
    if (Filler::copies() && tile_row < segment.rows) {
      const int token = (segment.first_row + tile_row) / args_.num_heads;
      const int head = segment.first_row + tile_row - token * args_.num_heads;
      from = static_cast<const uint16_t*>(args_.q) + (segment.request.row + token) * args_.q_stride_token +
             head * args_.q_stride_head;
    }
    tell_empty(shared_, stage ^ 1);
    filler.start(stage, from, KDTREE_QK_DIM * 2);
    fence_stores_before_bulk_copies();
    filler.wait(stage);
    barrier_sync(kGroupBarrier + me_.group(), kGroupThreads);  // zeros have come as well
    query.load(stage_address(stage), me_);
    tell_empty(shared_, stage);
  }

  /* A step of keys: scores, P, and O in step with the maximum that P is relative to. The stage's values are on their
   * way since before P was known. */
  template <typename Visible>
  __device__ __forceinline__ void weigh_keys(const QueryFragment& query, Output& output, Softmax& softmax,
                                             Output::Values& values, int count, float key_scale, float carry,
                                             Visible visible) const {
    wait_full(me_.group(), count);
    Multiplication multiplication(stage_address(count), me_);
    wait_turn(me_.group(), count == kQuerySteps);
    const Scores own = multiplication.run(query, me_, shared_);
    give_turn(me_.group());
    barrier_sync(kGroupBarrier + me_.group(), kGroupThreads);
    softmax.add(own, visible(), args_.sm_scale * kLog2E * key_scale, carry, me_, shared_);
    values.begin(stage_address(count), me_);
    barrier_sync(kGroupBarrier + me_.group(), kGroupThreads);
    output.rescale(shared_, me_);
  }

  __device__ __forceinline__ static int stage_offset(int count) {
    return Shared::kStages + count % 2 * Shared::kStageBytes;
  }
  __device__ __forceinline__ uint32_t stage_address(int count) const {
    return shared_address(shared_) + stage_offset(count);
  }

  __device__ __forceinline__ uint32_t stage_bits(int count) const {
    return *reinterpret_cast<const uint32_t*>(shared_ + Shared::kStageBits + count % 2 * 4);
  }

  /* Which of its 8 keys this thread's row sees: of a prefix, those that exist. */
  __device__ __forceinline__ uint32_t prefix_keys(int count) const {
    return own_keys(stage_bits(count), me_.lane());
  }

  /* And of draft tokens. */
  __device__ __forceinline__ uint32_t draft_keys() const {
    return shared_[Shared::kVisible + (me_.group() * kGroupWarps + me_.warp()) * 32 + me_.lane()];
  }

  /* `last`: what is left to scale O by. */
  __device__ __forceinline__ void store(const Segment& segment, const Output& output, const Softmax& softmax,
                                        float last) const {
    const float sum = softmax.total();
    if (!segment.opens || !segment.closes) return store_partial(segment, output, softmax.max, sum, last);
    float* const factors = reinterpret_cast<float*>(shared_ + Shared::kRowFactor);
    barrier_sync(kGroupBarrier + me_.group(), kGroupThreads);  // all have rescaled by the last step's factors
    if (me_.lane() % 4 == 0) factors[me_.row()] = reciprocal(sum) * last;
    barrier_sync(kGroupBarrier + me_.group(), kGroupThreads);
#pragma unroll
    for (int octet = 0; octet < Output::kRowParts; ++octet) {
      const int row = me_.group() * kGroupRows + octet * 8 + me_.lane() / 4;
      if (row >= segment.rows) continue;
      const float factor = factors[row];
      uint16_t* const to = result_row(args_, segment.request.row, segment.first_row + row) + me_.warp() * kWarpCols +
                           me_.lane() % 4 * 2;
#pragma unroll
      for (int n = 0; n < Output::kColumnTiles; ++n)
        *reinterpret_cast<uint32_t*>(to + n * 8) =
            pack_bf16(output.at(octet, n, 0) * factor, output.at(octet, n, 1) * factor);
    }
  }

  __device__ __forceinline__ void store_partial(const Segment& segment, const Output& output, float max, float sum,
                                                float last) const {
    PartialTile& tile = segment.opens ? workspace_.tail(blockIdx.x) : workspace_.front(blockIdx.x);
    const int rows = segment.rows, lane = me_.lane();
#pragma unroll
    for (int octet = 0; octet < Output::kRowParts; ++octet) {
      float largest = quad_max(largest_of(output, octet, [](float x) { return fabsf(x); }));
      if (__any_sync(~0u, largest == INFINITY))  // of the others then: it stays what it is at any scale
        largest = quad_max(largest_of(output, octet, [](float x) { return fabsf(x) < INFINITY ? fabsf(x) : 0.f; }));
      const float scale = power_above(largest), factor = reciprocal_of_power(scale);
      const int row = me_.group() * kGroupRows + octet * 8 + lane / 4;
      if (row >= rows) continue;
      uint4* const to = reinterpret_cast<uint4*>(&tile.out[row][me_.warp() * kWarpCols + lane % 4 * 8]);
#pragma unroll
      for (int n = 0; n < Output::kColumnTiles; n += 4) {
        const auto pair = [&](int i) {
          return pack_f16(output.at(octet, n + i, 0) * factor, output.at(octet, n + i, 1) * factor);
        };
        to[n] = make_uint4(pair(0), pair(1), pair(2), pair(3));
      }
      if (lane % 4 == 0) tile.scale[row][me_.warp()] = scale * last;
    }
    if (lane % 4 == 0 && static_cast<int>(me_.row()) < rows) tile.stats[me_.row()] = make_float2(max, sum);
  }

  template <typename Magnitude>
  __device__ __forceinline__ static float largest_of(const Output& output, int octet, Magnitude magnitude) {
    float largest = 0.f;
#pragma unroll
    for (int n = 0; n < Output::kColumnTiles; ++n)
      largest = fmaxf(largest, fmaxf(magnitude(output.at(octet, n, 0)), magnitude(output.at(octet, n, 1))));
    return largest;
  }

  __device__ __forceinline__ static float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  }

  /* A power of two that brings numbers up to `largest` below 2^15; its reciprocal is one as well. */
  __device__ __forceinline__ static float power_above(float largest) {
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23) - 14, 1);
    return __uint_as_float(static_cast<uint32_t>(min(exponent, 252)) << 23);
  }
  __device__ __forceinline__ static float reciprocal_of_power(float power) {
    return __uint_as_float((254u << 23) - __float_as_uint(power));
  }

  const kdtree_verify_args& args_;
  const Workspace& workspace_;
  unsigned char* const shared_;
  const Seat me_;
};

template <bool fp8_pool>
__device__ __forceinline__ void attend(const kdtree_verify_args& args, const Workspace& workspace) {
  extern __shared__ __align__(128) unsigned char shared[];
  Plan& plan = plan_of(shared);

  launch_dependents();
  if (threadIdx.x == 0) plan.refused = plan.query_rows = 0;
  if (threadIdx.x == kThreads - 1) {
#pragma unroll
    for (int stage = 0; stage < 2; ++stage) {
      mbarrier_init(shared_address(shared + Shared::kCopyBarriers) + stage * 8, kFillingWarps);
      mbarrier_init(shared_address(shared + Shared::kEmptyBarriers) + stage * 8, kEmptyArrivals);
    }
  }
  wait_for_dependency();  // what comes first above touches nothing that others may still read or write
  if (threadIdx.x == 0) report_of(workspace).rows = report_of(workspace).parts = 0;
  __syncthreads();
  RequestSize* const sizes = reinterpret_cast<RequestSize*>(shared + Shared::kStages);
  const Request own = measure(args, plan, sizes);
  fence_stores_before_bulk_copies();
  __syncthreads();
  if (threadIdx.x / 32 == kPlanningWarp) {
    share_out(args, plan, sizes, own);
    if (lane_id() == 0) describe(args, plan, segment_of(shared), report_of(workspace));
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
    Group(args, workspace, shared).run();
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

/* A group of compute warps: it walks 32 rows of each segment's tile, and stores what comes of it. Of a tile that has
 * none of its rows, it only hands its turns on and lets the stages go by. */
#pragma once

#include "range.cuh"
#include "result.cuh"
#include "segment.cuh"
#include "values.cuh"
#include "workspace.cuh"

namespace kdtree {

template <bool fp8_pool>
class Group {
 public:
  __device__ __forceinline__ Group(const kdtree_verify_args& args, const Workspace& workspace, unsigned char* shared)
      : args_(args), workspace_(workspace), shared_(shared) {}

  __device__ __forceinline__ void run() const {
    if (me_.group() == 1) give_turn(1);
    int number = 0;
#pragma unroll 1
    while (true) {
      begin_segment();
      if (segment(number).last) break;
      if (me_.group() * kGroupRows < segment(number).rows)
        walk(number);
      else
        pass(number);
      ++number;
    }
    if (me_.group() == 0) wait_turn(0);  // that nobody's arrival is left over
  }

 private:
  using Pool = std::conditional_t<fp8_pool, F16, Bf16>;  // what its rows are in their stage

  /* Describes the segment after `number`, while the queries of that one come. */
  __device__ __forceinline__ void describe_next(int number) const {
    if (me_.group() != 0 || me_.warp() != 0) return;
    if (me_.lane() == 0) {
      if (number > 0) wait(shared_, Signal::kThrough, number - 1);
      describe(args_, plan_of(shared_ + anew(0u)), segment(number + 1), report_of(workspace_));
    }
    tell(shared_, Signal::kDescribed, number + 1);
  }

  __device__ __forceinline__ void walk(int number) const {
    QueryFragment<fp8_pool> query;
    query.load([&](int row) { return query_row(segment(number), row); }, args_.sm_scale * kLog2E, me_, shared_,
               [&] { describe_next(number); });
    int count = uniform(segment(number).first_step);  // of steps so far
    Output output;
    output.clear();
    Softmax softmax;
    const int prefix_end = uniform(segment(number).prefix_end());
#pragma unroll 1
    for (; count < prefix_end; ++count) {
      Output::Values values;
      weigh_keys<Pool>(query, output, softmax, values, count, args_.k_scale, 1.f, [&] { return prefix_keys(count); });
      output.template add<Pool>(values, me_, shared_address(shared_));
      tell(shared_, Signal::kEmpty, count);
    }
    const auto& as_drafts = of_drafts(query);
    float carry = args_.v_scale;  // O is in units of it while it holds prefix values only: P stays free of it
#pragma unroll 1
    for (; count < segment(number).end(); count += 2) {
      Output::Values values;
      weigh_keys<Bf16>(as_drafts, output, softmax, values, count, 1.f, carry, [&] { return draft_keys(); });
      carry = 1.f;
      tell(shared_, Signal::kEmpty, count);
      wait(shared_, Signal::kFull, count + 1);
      if (stage_bits(count + 1) == 0) {
        values.begin(stage_address(count + 1), me_);
        output.template add<Bf16>(values, me_, shared_address(shared_));
      } else {
        output.add_seen_only(shared_ + stage_offset(count + 1), shared_, me_);
      }
      tell(shared_, Signal::kEmpty, count + 1);
    }
    store(segment(number), output, softmax, carry);
  }

  /* A segment of whose tile no row is the group's: the other group shall not wait for it. */
  __device__ __forceinline__ void pass(int number) const {
    const int end = segment(number).end();
#pragma unroll 1
    for (int count = segment(number).first_step; count < end; ++count) {
      const bool values = count >= segment(number).prefix_end() && (end - count) % 2 != 0;
      if (!values) {
        wait_turn(me_.group());
        give_turn(me_.group());
      }
      tell(shared_, Signal::kEmpty, count);
    }
  }

  /* Q to multiply draft tokens' keys by, which are bf16. */
  __device__ __forceinline__ static const QueryFragment<false>& of_drafts(const QueryFragment<false>& query) {
    return query;
  }
  __device__ __forceinline__ static QueryFragment<false> of_drafts(const QueryFragment<true>& query) {
    return query.as_bf16();
  }

  /* Found anew at each call: the step loops have no register for where it lies. */
  __device__ __forceinline__ Segment& segment(int number) const { return segment_of(shared_ + anew(0u), number); }

  /* Row `row` of the group's, of `q`; past the tile's last that one again. */
  __device__ __forceinline__ const uint16_t* query_row(const Segment& segment, int row) const {
    const int tile_row = segment.first_row + min(me_.group() * kGroupRows + row, segment.rows - 1);
    const int token = tile_row / args_.num_heads, head = tile_row - token * args_.num_heads;
    return static_cast<const uint16_t*>(args_.q) + (segment.request.row + token) * args_.q_stride_token +
           head * args_.q_stride_head;
  }

  /* A step of keys: scores, P, and O in step with the maximum that P is relative to. The stage's values are on their
   * way since before P was known. */
  template <typename Number, typename Query, typename Visible>
  __device__ __forceinline__ void weigh_keys(const Query& query, Output& output, Softmax& softmax,
                                             Output::Values& values, int count, float key_scale, float carry,
                                             Visible visible) const {
    wait(shared_, Signal::kFull, count);
    Multiplication multiplication(stage_address(count), me_);
    wait_turn(me_.group());
    const Scores own = multiplication.template run<Number>(query, me_, shared_);
    give_turn(me_.group());
    barrier_sync(kGroupBarrier + me_.group(), kGroupThreads);
    const bool moved = softmax.template add<Number>(own, visible(), score_scale() * key_scale, carry, me_, shared_);
    values.begin(stage_address(count), me_);
    if (barrier_any(kGroupBarrier + me_.group(), kGroupThreads, moved)) output.rescale(shared_, me_);
  }

  /* What makes scores in base 2 of S. */
  __device__ __forceinline__ float score_scale() const {
    if constexpr (fp8_pool) return reinterpret_cast<const float*>(shared_ + Shared::kQueryScale)[me_.row()];
    return anew(args_.sm_scale) * kLog2E;
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
    group_sync<kGroupBarrier, kGroupThreads>(me_.group());  // all have rescaled by the last step's factors
    if (me_.lane() % 4 == 0) factors[me_.row()] = reciprocal(sum) * last;
    group_sync<kGroupBarrier, kGroupThreads>(me_.group());
#pragma unroll
    for (int octet = 0; octet < Output::kRowParts; ++octet) {
      const int row = me_.group() * kGroupRows + octet * 8 + me_.lane() / 4;
      const float factor = factors[row];
      uint16_t* const to = result_row(args_, segment.request.row, segment.first_row + row) + me_.warp() * kWarpCols +
                           me_.lane() % 4 * 8;
#pragma unroll
      for (int n = 0; n < Output::kColumnTiles; n += 4) {
        uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          pair[i] = pack_bf16(output.at(octet, n + i, 0) * factor, output.at(octet, n + i, 1) * factor);
        transpose_quads(pair);  // a lane then has 8 neighbours, of column tile n + lane % 4
        if (row < segment.rows) *reinterpret_cast<uint4*>(to + n * 8) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
      }
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

  const kdtree_verify_args& args_;
  const Workspace& workspace_;
  unsigned char* const shared_;
  const Seat me_;
};

}  // namespace kdtree

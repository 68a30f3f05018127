/* S = Q K^T of one stage, and the softmax that turns it into P.
 *
 * Q lies in registers, split over the warps 2 ways by rows and 4 ways by columns, so each warp computes partial sums of
 * 32 rows x 32 keys. Its four row octets belong to the four warps of its row group: it keeps its own and sends the
 * others through shared memory. The owner of an octet adds the four parts in a fixed order; a thread then holds 8 keys
 * of one row, and the 4 threads of a quad hold the row.
 */
#pragma once

#include "ptx.cuh"
#include "segment.cuh"

namespace kdtree {

constexpr float kLog2E = 1.4426950408889634f;

/* This warp's part of Q: two 16-row blocks by 9 steps of 16 columns, as mma's A operand. */
struct QueryFragment {
  uint32_t a[2][kSliceSteps][4];

  __device__ __forceinline__ void load(const kdtree_verify_args& args, const Segment& segment) {
    const auto [lane, warp] = this_thread();
    const int group = warp / kSlices, slice = warp % kSlices;
#pragma unroll
    for (int half = 0; half < 4; ++half) {  // the rows g, g+8, g+16, g+24 of this warp's 32
      const int row = group * 32 + half * 8 + lane / 4;
      const bool exists = row < segment.rows;
      const int token = (segment.first_row + row) / args.num_heads;
      const int head = (segment.first_row + row) - token * args.num_heads;
      const uint16_t* const from = static_cast<const uint16_t*>(args.q) +
                                   (segment.request.row + token) * args.q_stride_token + head * args.q_stride_head +
                                   slice * kSliceDim + lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < kSliceSteps; ++step) {
#pragma unroll
        for (int right = 0; right < 2; ++right)
          a[half / 2][step][half % 2 + 2 * right] =
              exists ? __ldg(reinterpret_cast<const uint32_t*>(from + step * 16 + right * 8)) : 0u;
      }
    }
  }
};

/* Row `row` of P of owner warp row / 8, in bytes from the inboxes' start. */
__device__ __forceinline__ constexpr int prob_offset(int row) {
  return row / kOwnedRows * kInboxBytes + row % kOwnedRows * kProbPitch;
}

/* A thread's partial scores of the octet that its warp owns: 8 keys of row 8 warp + lane / 4. */
struct OwnScores {
  float4 half[2];
};

/* Which key of the stage a lane's i-th of eight is. */
__device__ __forceinline__ int key_of(uint32_t lane, int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; }

/* Message `i` of three to a warp, `octet` inboxes on from `inboxes`, which counts the lane in. */
__device__ __forceinline__ float4* message(unsigned char* inboxes, int octet, int i, int half) {
  return reinterpret_cast<float4*>(inboxes + octet * kInboxBytes + i * kMessageBytes + half * (kMessageBytes / 2));
}

/* A denominator starts as -0, which adding -0 leaves as it is, and weights of +0 do not: a row that saw only scores of
 * -infinity (0 / 0, NaN) is so told from one that saw no key (zeros), see reciprocal. */
constexpr float kNothingSeen = -0.f;

/* Before a segment's first step; a barrier must follow. */
__device__ __forceinline__ void clear_softmax(unsigned char* shared) {
  const auto [lane, warp] = this_thread();
  const uint32_t row = warp * 32 + lane;
  if (row >= kRows) return;
  reinterpret_cast<float*>(shared + Shared::kMax)[row] = -INFINITY;
  reinterpret_cast<float*>(shared + Shared::kSum)[row] = kNothingSeen;
}

/* Partial scores against a stage's 32 keys. Sends what other warps own and returns what this one does. */
__device__ __forceinline__ OwnScores multiply_keys(const QueryFragment& q, const unsigned char* stage,
                                                   unsigned char* shared) {
  const auto [lane, warp] = this_thread();
  const int group = warp / kSlices, slice = warp % kSlices;
  const uint32_t keys =
      shared_address(stage) + (lane % 8 + lane / 16 * 8) * kKeyPitch + (slice * kSliceDim + lane / 8 % 2 * 8) * 2;
  unsigned char* const inboxes = shared + Shared::kInboxes + group * kSlices * kInboxBytes + lane * 16;
  OwnScores own;
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // 16 keys at a time, for the registers' sake
    float c[2][2][4] = {};
#pragma unroll
    for (int step = 0; step < kSliceSteps; ++step) {
      uint32_t b[4];
      load_matrices(b, keys + half * 16 * kKeyPitch + step * 32);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma(c[m][0], q.a[m][step], b[0], b[1]);
        mma(c[m][1], q.a[m][step], b[2], b[3]);
      }
    }
#pragma unroll
    for (int octet = 0; octet < kSlices; ++octet) {
      const int e = octet % 2 * 2;
      const float4 part = {c[octet / 2][0][e], c[octet / 2][0][e + 1], c[octet / 2][1][e], c[octet / 2][1][e + 1]};
      // Octet 0's stays only if no later one is ours: this way no register is ever left unset.
      if (octet == 0 || octet == slice) own.half[half] = part;
      if (octet != slice) *message(inboxes, octet, slice - (slice > octet), half) = part;
    }
  }
  return own;
}

/* Whether a step is of the prefix, and all its 32 keys are there. */
__device__ __forceinline__ bool all_visible(const Segment& segment, int step, const unsigned char* shared) {
  const uint64_t valid = *reinterpret_cast<const uint64_t*>(shared + Shared::kValid + step % 2 * kWarps);
  return step < segment.prefix_steps && valid == 0x0f0f0f0f0f0f0f0full;
}

/* Adds the messages up and turns scores into P, which takes their place. Which keys a row sees, if not all,
 * mark_visible has said. `carry` scales what O holds so far, beside the softmax. Returns whether this thread's row of O
 * must be rescaled. */
__device__ __forceinline__ bool update_softmax(const OwnScores& own, bool all_seen, float scale, float carry,
                                               unsigned char* shared) {
  const auto [lane, warp] = this_thread();
  const uint32_t row = warp * kOwnedRows + lane / 4;
  unsigned char* const inbox = shared + Shared::kInboxes + warp * kInboxBytes;
  float& row_max = reinterpret_cast<float*>(shared + Shared::kMax)[row];
  float& row_sum = reinterpret_cast<float*>(shared + Shared::kSum)[row];
  float s[8];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float4 sum = own.half[half];
#pragma unroll
    for (int i = 0; i < kSlices - 1; ++i) {
      const float4 part = *message(inbox + lane * 16, 0, i, half);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    s[half * 4] = sum.x, s[half * 4 + 1] = sum.y, s[half * 4 + 2] = sum.z, s[half * 4 + 3] = sum.w;
  }
  const uint32_t visible = all_seen ? 0xffu : shared[Shared::kVisible + warp * 32 + lane];
  const float before = row_max;
  __syncwarp();  // every lane has read what is overwritten below

  float highest = before;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[i] = visible >> i & 1 ? s[i] * scale : -INFINITY;
    highest = fmaxf(highest, s[i]);
  }
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
  const float shift = highest == -INFINITY ? 0.f : highest;  // nothing seen yet: weights of 0, not of NaN
  const float alpha = exp2_fast(before - shift);
  float sum = kNothingSeen;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[i] = visible >> i & 1 ? exp2_fast(s[i] - shift) : kNothingSeen;
    sum += s[i];
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  unsigned char* const prob = inbox + lane / 4 * kProbPitch + lane % 4 * 4;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    *reinterpret_cast<uint32_t*>(prob + pair * 16) = pack_bf16(s[2 * pair], s[2 * pair + 1]);
  if (lane % 4 == 0) {
    row_max = highest;
    row_sum = row_sum * alpha + sum;
    reinterpret_cast<float*>(shared + Shared::kAlpha)[row] = alpha * carry;
  }
  return alpha * carry != 1.f;
}

/* Which of this thread's 8 keys its row sees, one bit each: keys that the stage holds and, of draft keys, those that
 * the tree mask allows. */
__device__ __forceinline__ uint32_t visible_keys(const kdtree_verify_args& args, const Segment& segment, int step,
                                                 const unsigned char* shared) {
  const auto [lane, warp] = this_thread();
  const unsigned char* const valid = shared + Shared::kValid + step % 2 * kWarps;
  const uint32_t row = warp * kOwnedRows + lane / 4;
  const int token = (segment.first_row + row) / args.num_heads;
  const int64_t first = segment.first_key(step);
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int key = key_of(lane, i);
    const bool exists = valid[key / 4] >> key % 4 & 1;
    const bool seen = step < segment.prefix_steps ||
                      (row < segment.rows && exists && sees_draft(args, segment.request, token, first + key));
    bits |= static_cast<uint32_t>(exists && seen) << i;
  }
  return bits;
}

/* Leaves visible_keys for update_softmax, in a byte of each thread's own: early, since masks lie in global memory. Of a
 * step whose keys all rows see, nothing; that is almost every step. */
__device__ __forceinline__ void mark_visible(const kdtree_verify_args& args, const Segment& segment, int step,
                                             unsigned char* shared) {
  if (all_visible(segment, step, shared)) return;
  const uint32_t bits = visible_keys(args, segment, step, shared);
  const auto [lane, warp] = this_thread();
  shared[Shared::kVisible + warp * 32 + lane] = static_cast<unsigned char>(bits);
}

}  // namespace kdtree

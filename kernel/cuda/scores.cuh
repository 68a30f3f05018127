/* S = Q K^T of one stage for the 32 rows of a group, and the softmax that turns it into P.
 *
 * Q lies in registers, split over the group's four warps by columns, so each warp computes partial sums of all 32 rows
 * x 32 keys. Each row octet belongs to one warp: a warp keeps its own and sends the others through shared memory. The
 * owner of an octet adds the four parts in a fixed order; a thread then holds 8 keys of one row, and the 4 threads of a
 * quad hold the row.
 */
#pragma once

#include "operands.cuh"
#include "query.cuh"
#include "segment.cuh"

namespace kdtree {

constexpr float kLog2E = 1.4426950408889634f;

/* Which key of the stage a lane's i-th of eight is. */
__device__ __forceinline__ int key_of(uint32_t lane, int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; }

/* Message `i` (0 .. 2) in an outbox goes to warp (sender + i + 1) % 4. Keys 8 pair + 2 (lane % 4) and the next of row
 * lane / 4 lie at this many bytes from the outbox' start, without the lane's own 8. */
__device__ __forceinline__ constexpr int message_offset(int i, int pair) {
  return i * kMessageBytes + pair * (kMessageBytes / 4);
}

/* Row `row` of a group's P, in bytes from its first outbox. Warp w's 8 rows take the place of a message that it has
 * read, that of warp w ^ 1: so rows 16 apart lie equally far apart for all lanes of a matrix load. */
__device__ __forceinline__ constexpr int prob_offset(int row) {
  const int owner = row / kOwnedRows;
  return (owner ^ 1) * kOutboxBytes + (owner % 2 == 0 ? 2 * kMessageBytes : 0) + row % kOwnedRows * kProbPitch;
}
static_assert(kOwnedRows * kProbPitch <= kMessageBytes);

/* A thread's scores of the octet that its warp owns: key_of(lane, i) of its row; partial ones at first. */
struct Scores {
  float s[8];
};

/* Partial scores against a stage's 32 keys: sends what other warps own and keeps what this one does. */
class Multiplication {
 public:
  /* Its first fragments of K are on their way from here on. */
  __device__ __forceinline__ Multiplication(uint32_t stage, const Seat& me)
      : keys_(stage + (me.lane() % 8 + me.lane() / 16 * 8) * kKeyPitch +
              (me.warp() * kSliceDim + me.lane() / 8 % 2 * 8) * 2) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) fetch(i);
  }

  template <typename Number, typename Query>
  __device__ __forceinline__ Scores run(const Query& q, const Seat& me, unsigned char* shared) {
    unsigned char* const outbox = shared + me.outbox(me.warp()) + me.lane() * 8;
    Scores own;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 keys at a time, for the registers' sake
      float c[2][2][4] = {};
#pragma unroll
      for (int step = 0; step < kSliceSteps; ++step) {
        const int i = half * kSliceSteps + step;
        if (i + kAhead < kFragments) fetch(i + kAhead);
        const auto& b = b_[i % (kAhead + 1)];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Number::mma(c[m][0], q.a[m][step], b[0], b[1]);
          Number::mma(c[m][1], q.a[m][step], b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        own.s[half * 4 + n * 2] = c[0][n][0];
        own.s[half * 4 + n * 2 + 1] = c[0][n][1];
      }
#pragma unroll
      for (int octet = 1; octet < kGroupWarps; ++octet) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
          *reinterpret_cast<float2*>(outbox + message_offset(octet - 1, half * 2 + n)) =
              make_float2(c[octet / 2][n][octet % 2 * 2], c[octet / 2][n][octet % 2 * 2 + 1]);
      }
    }
    return own;
  }

 private:
  static constexpr int kAhead = 2, kFragments = 2 * kSliceSteps;
  __device__ __forceinline__ void fetch(int i) {
    load_matrices(b_[i % (kAhead + 1)], keys_ + i / kSliceSteps * 16 * kKeyPitch + i % kSliceSteps * 32);
  }
  const uint32_t keys_;
  uint32_t b_[kAhead + 1][4];
};

/* A denominator starts as -0, and weights of +0 that are added to it make it +0: a row that saw only scores of
 * -infinity (0 / 0, NaN) is so told from one that saw no key (zeros), see reciprocal. */
constexpr float kNothingSeen = -0.f;

/* What weights are taken relative to: where nothing has been seen, they shall be 0 and not NaN. */
__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0.f : max; }

/* What a quad knows of its row: the same maximum in all four lanes, each lane's own part of the denominator. */
struct Softmax {
  float max = -INFINITY;  // in base 2
  float sum = kNothingSeen;

  /* Adds the messages up and turns scores into P, which takes their place. `visible`: bit i is set where the thread's
   * row sees key_of(lane, i). `carry` scales what O holds so far, beside the softmax; by how much O of each row must be
   * rescaled is left in shared memory. Returns whether this row's must. */
  template <typename Number>
  __device__ __forceinline__ bool add(Scores own, uint32_t visible, float scale, float carry, const Seat& me,
                                      unsigned char* shared) {
    const uint32_t lane = me.lane();
    auto& s = own.s;
#pragma unroll
    for (int i = 0; i < kGroupWarps - 1; ++i) {
      const uint32_t sender = (me.warp() + kGroupWarps - 1 - i) % kGroupWarps;
      const unsigned char* const outbox = shared + me.outbox(sender) + lane * 8;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const float2 part = *reinterpret_cast<const float2*>(outbox + message_offset(i, pair));
        s[pair * 2] += part.x, s[pair * 2 + 1] += part.y;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i] = __fmul_rn(s[i], scale);  // never fused: `highest` is of what is rounded here
    if (visible != 0xff) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (!(visible >> i & 1)) s[i] = -INFINITY;
    }
    float highest = fmaxf(fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])), fmaxf(fmaxf(s[4], s[5]), fmaxf(s[6], s[7])));
    float alpha = 1.f;
    if (__any_sync(~0u, highest - max > Number::kSlack)) {  // not max + kSlack, which may round to more
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
      highest = fmaxf(max, highest - Number::kBelow);
      alpha = exp2_fast(max - shift_of(highest));
      sum *= alpha;
      max = highest;
    }
    const float shift = shift_of(max);
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i] = exp2_fast(s[i] - shift);
    if (visible != 0xff) {  // of an unseen key -0, see Output::add_seen_only
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (!(visible >> i & 1)) s[i] = -0.f;
    }
    __syncwarp();  // every lane has read what is overwritten here
    const uint32_t again = me.lane();
    unsigned char* const prob = shared + me.outbox(0) + prob_offset(me.warp() * kOwnedRows) +
                                again / 4 * kProbPitch + again % 4 * 4;
    float added = 0.f;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint32_t packed = Number::pack(s[2 * pair], s[2 * pair + 1]);
      *reinterpret_cast<uint32_t*>(prob + pair * 16) = packed;
      // The denominator is of the weights as they are multiplied: their rounding cancels where one key outweighs all.
      const float2 weights = Number::unpack(packed);
      added += weights.x + weights.y;
    }
    if (visible != 0) sum += added;
    alpha *= carry;
    if (again % 4 == 0) reinterpret_cast<float*>(shared + Shared::kRowFactor)[me.row()] = alpha;
    return alpha != 1.f;
  }

  /* The row's denominator. */
  __device__ __forceinline__ float total() const {
    const float pair = sum + __shfl_xor_sync(~0u, sum, 1);
    return pair + __shfl_xor_sync(~0u, pair, 2);
  }
};

/* Which of a thread's eight keys are among a stage's 32: bit i for key_of(lane, i). Its keys are two of each byte. */
__device__ __forceinline__ uint32_t own_keys(uint32_t stage_bits, uint32_t lane) {
  return (stage_bits >> lane % 4 * 2 & 0x03030303u) * 0x01041040u >> 24;
}

}  // namespace kdtree

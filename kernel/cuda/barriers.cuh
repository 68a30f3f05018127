/* The CTA's barriers: who waits for whom.
 *
 * Loaders and groups tell each other by mbarriers; the groups wait among themselves at named barriers. Who only tells
 * others goes on; what was read and written before comes before what those do whom it lets through. Named barrier 0 is
 * __syncthreads.
 */
#pragma once

#include "ptx.cuh"
#include "tile.cuh"

namespace kdtree {

/* Whether to build for compute-sanitizer's racecheck, which sees no order where one lane arrives on an mbarrier for its
 * warp (docs/evidence/kernel-h200.md): all lanes do then. */
#ifdef KDTREE_FOR_RACECHECK
constexpr bool kForRacecheck = true;
#else
constexpr bool kForRacecheck = false;
#endif

/* What mbarriers tell: of a step (stage step % 2) or of a segment, by number. */
enum class Signal {
  kCopied,     // step: its copies have come; loaders wait for it where they look at them before the groups do, and
               // before they fill the stage again: no phase goes by unwaited
  kFull,       // step: its stage is filled
  kEmpty,      // step: both groups have read the stage, or let it pass: one without rows of the tile tells as well, of a
               // stage that may not be filled yet
  kDescribed,  // segment: it is described
  kThrough     // segment: the loaders have no more need of its description
};

/* Arrivals that a signal takes, besides bytes of copies. */
__host__ __device__ constexpr int arrivals(Signal signal) {
  const int lanes = kForRacecheck ? 32 : 1;  // of a warp
  switch (signal) {
    case Signal::kCopied:
    case Signal::kFull: return kLoaderThreads / 32 * lanes;
    case Signal::kEmpty: return kComputeThreads / 32 * lanes;
    case Signal::kDescribed: return lanes;
    case Signal::kThrough: return kLoaderThreads / 32 * lanes;
  }
  return 0;
}
static_assert(Shared::kSignals == static_cast<int>(Signal::kThrough) + 1);

__device__ __forceinline__ uint32_t barrier_of(const unsigned char* shared, Signal signal, int number) {
  return shared_address(shared) + Shared::kBarriers + (static_cast<int>(signal) * 2 + number % 2) * 8;
}

/* One thread does it for all, before they synchronize. */
__device__ __forceinline__ void init_signals(const unsigned char* shared) {
#pragma unroll
  for (int i = 0; i < 2 * Shared::kSignals; ++i) {
    const Signal signal = static_cast<Signal>(i / 2);
    mbarrier_init(barrier_of(shared, signal, i), arrivals(signal));
  }
}

/* A warp's part in telling. */
__device__ __forceinline__ void tell(const unsigned char* shared, Signal signal, int number) {
  __syncwarp();
  if (kForRacecheck || lane_id() == 0) mbarrier_arrive(barrier_of(shared, signal, number));
}

/* Until all have told it of the step or segment `number`. Nobody tells of a number before what was told of the second
 * one before it has been waited for, or could have been: a stage is filled again when it is read, a description written
 * anew when loaders and groups are through with it; and a group without rows, which reads nothing, comes no further than
 * the other lets it by its turns. So a wait's parity is of that number and no other. */
__device__ __forceinline__ void wait(const unsigned char* shared, Signal signal, int number) {
  mbarrier_wait(barrier_of(shared, signal, number), number / 2 % 2);
}

enum BarrierId {
  kGroupBarrier = 1,   // [group]: its warps among themselves
  kTurnBarrier = 3,    // [group]: it is the group's turn to multiply keys
  kGroupsBarrier = 5,  // both groups
  kLoaderBarrier = 6   // the loaders among themselves
};

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* barrier_sync, and whether `any` was true in one of the threads. */
__device__ __forceinline__ bool barrier_any(int id, int threads, bool any) {
  uint32_t result;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\tbar.red.or.pred p, %1, %2, p;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(result)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(any))
      : "memory");
  return result != 0;
}

/* One of two barriers, `first` and the next, by the group: the number stands in the instruction, no register holds it.
 * Where it is used and where barrier_sync is what lets ptxas do without spills on sm_90a and sm_120a alike. */
template <int first, int threads>
__device__ __forceinline__ void group_sync(uint32_t group) {
  if (group == 0)
    barrier_sync(first, threads);
  else
    barrier_sync(first + 1, threads);
}
template <int first, int threads>
__device__ __forceinline__ void group_arrive(uint32_t group) {
  if (group == 0)
    barrier_arrive(first, threads);
  else
    barrier_arrive(first + 1, threads);
}

/* Groups: until both have done with the segment before, and see the next one's description. */
__device__ __forceinline__ void begin_segment() { barrier_sync(kGroupsBarrier, kComputeThreads); }

/* The groups multiply keys in turns, so that one does while the other is at its softmax and values: together they would
 * ask more of the shared memory than it gives, and less a moment later. Group 0 begins: group 1 gives it one turn more.
 */
__device__ __forceinline__ void wait_turn(int group) {
  group_sync<kTurnBarrier, kComputeThreads>(group);
}
__device__ __forceinline__ void give_turn(int group) { group_arrive<kTurnBarrier, kComputeThreads>(group ^ 1); }

}  // namespace kdtree

/* The CTA's barriers: who waits for whom.
 *
 * Named ones, and for empty stages an mbarrier each. A thread that only tells others arrives and goes on; its memory
 * accesses before that come before those of the threads that it lets through. Named barrier 0 is __syncthreads.
 */
#pragma once

#include "ptx.cuh"
#include "tile.cuh"

namespace kdtree {

/* Whether to build for compute-sanitizer's racecheck, which sees no order where several warps bar.arrive, nor where one
 * lane arrives on an mbarrier for its warp (tests/gpu/racecheck.md). With it, they wait, or all lanes arrive: the same
 * order, more slowly. */
#ifdef KDTREE_FOR_RACECHECK
constexpr bool kForRacecheck = true;
#else
constexpr bool kForRacecheck = false;
#endif

enum BarrierId {
  kFullBarrier = 1,     // [group][stage]: the loaders have filled the stage
  kGroupBarrier = 5,    // [group]: its warps among themselves
  kTurnBarrier = 7,     // [group]: it is the group's turn to multiply keys
  kGroupsBarrier = 9,   // both groups
  kLoaderBarrier = 10,  // the loaders among themselves
  kThroughBarrier = 11,   // [segment % 2]: the loaders are through with it
  kDescribedBarrier = 13  // [segment % 2]: it is described
};

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Tells those who barrier_sync of what this thread did before. */
__device__ __forceinline__ void barrier_tell(int id, int threads) {
  if constexpr (kForRacecheck)
    barrier_sync(id, threads);
  else
    barrier_arrive(id, threads);
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

__device__ __forceinline__ uint32_t empty_barrier(const unsigned char* shared, int count) {
  return shared_address(shared + Shared::kEmptyBarriers) + count % 2 * 8;
}
constexpr int kEmptyArrivals = kForRacecheck ? kComputeThreads : kComputeThreads / 32;

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

/* Loaders: the stage that step `count` of the CTA goes into, the second before it having been read. */
__device__ __forceinline__ void wait_empty(const unsigned char* shared, int count) {
  if (count >= 2) mbarrier_wait(empty_barrier(shared, count), count / 2 % 2 ^ 1);
}

/* Loaders: it is filled. */
__device__ __forceinline__ void tell_full(int count) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
    barrier_tell(kFullBarrier + group * 2 + count % 2, kLoaderThreads + kGroupThreads);
}

/* A group: until the stage of its step `count` is filled. */
__device__ __forceinline__ void wait_full(int group, int count) {
  barrier_sync(kFullBarrier + group * 2 + count % 2, kLoaderThreads + kGroupThreads);
}

/* A group: it has read the stage. */
__device__ __forceinline__ void tell_empty(const unsigned char* shared, int count) {
  __syncwarp();
  if (kForRacecheck || lane_id() == 0) mbarrier_arrive(empty_barrier(shared, count));
}

/* Groups: until both have done with the segment before, and see the next one's description. */
__device__ __forceinline__ void begin_segment() { barrier_sync(kGroupsBarrier, kComputeThreads); }

/* The warp that describes segments and the loaders: each may be a segment ahead of the other. */
constexpr int kDescribingThreads = 32 + kLoaderThreads;
__device__ __forceinline__ void tell_described(int segment) {
  barrier_arrive(kDescribedBarrier + segment % 2, kDescribingThreads);  // waiting, both would wait for ever
}
__device__ __forceinline__ void wait_described(int segment) {
  barrier_sync(kDescribedBarrier + segment % 2, kDescribingThreads);
}
__device__ __forceinline__ void tell_through(int segment) {
  barrier_tell(kThroughBarrier + segment % 2, kDescribingThreads);
}
__device__ __forceinline__ void wait_through(int segment) {
  barrier_sync(kThroughBarrier + segment % 2, kDescribingThreads);
}

/* The groups multiply keys in turns, so that one does while the other is at its softmax and values: together they would
 * ask more of the shared memory than it gives, and less a moment later. Group 0 begins: group 1 gives it a turn more. */
__device__ __forceinline__ void wait_turn(int group) {
  group_sync<kTurnBarrier, kComputeThreads>(group);
}
__device__ __forceinline__ void give_turn(int group) { group_arrive<kTurnBarrier, kComputeThreads>(group ^ 1); }

}  // namespace kdtree

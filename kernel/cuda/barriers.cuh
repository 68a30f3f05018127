/* The CTA's named barriers: who waits for whom. 0 is __syncthreads.
 *
 * A thread that only tells others arrives and goes on; bar.arrive and bar.sync both order its memory accesses before
 * those of the threads that it lets through.
 */
#pragma once

#include "tile.cuh"

namespace kdtree {

enum BarrierId {
  kFullBarrier = 1,     // [group][stage]: the loaders have filled the stage
  kEmptyBarrier = 5,    // [stage]: both groups have done with it
  kGroupBarrier = 7,    // [group]: its warps among themselves
  kTurnBarrier = 9,     // [group]: it is the group's turn to multiply keys
  kGroupsBarrier = 11,  // both groups
  kLoaderBarrier = 12,  // the loaders among themselves
  kReadyBarrier = 13,   // [group]: the loaders are through with a segment
  kSegmentBarrier = 15  // group 0 tells the loaders that the next one is described
};

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Loaders: the stage that step `count` of the CTA goes into, the second before it having been read. */
__device__ __forceinline__ void wait_empty(int count) {
  if (count >= 2) barrier_sync(kEmptyBarrier + count % 2, kLoaderThreads + kComputeThreads);
}

/* Loaders: it is filled. */
__device__ __forceinline__ void tell_full(int count) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
    barrier_arrive(kFullBarrier + group * 2 + count % 2, kLoaderThreads + kGroupThreads);
}

/* A group: until the stage of its step `count` is filled. */
__device__ __forceinline__ void wait_full(int group, int count) {
  barrier_sync(kFullBarrier + group * 2 + count % 2, kLoaderThreads + kGroupThreads);
}

/* A group: it has read the stage. */
__device__ __forceinline__ void tell_empty(int count) {
  barrier_arrive(kEmptyBarrier + count % 2, kLoaderThreads + kComputeThreads);
}

/* Groups: until all have done with a segment, so that the next one may be described. */
__device__ __forceinline__ void end_segment(int group) {
  barrier_sync(kGroupsBarrier, kComputeThreads);
  barrier_sync(kReadyBarrier + group, kLoaderThreads + kGroupThreads);
}

/* Groups: until it is. */
__device__ __forceinline__ void begin_segment(int group) {
  barrier_sync(kGroupsBarrier, kComputeThreads);
  if (group == 0) barrier_arrive(kSegmentBarrier, kGroupThreads + kLoaderThreads);
}

/* Loaders: they have done with a segment. */
__device__ __forceinline__ void tell_ready() {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) barrier_arrive(kReadyBarrier + group, kLoaderThreads + kGroupThreads);
}

/* Loaders: until the next one is described. */
__device__ __forceinline__ void wait_segment() { barrier_sync(kSegmentBarrier, kGroupThreads + kLoaderThreads); }

/* The groups multiply keys in turns, so that one does while the other is at its softmax and values: together they would
 * ask more of the shared memory than it gives, and less a moment later. Group 0 begins. */
__device__ __forceinline__ void wait_turn(int group, bool first) {
  if (group != 0 || !first) barrier_sync(kTurnBarrier + group, kComputeThreads);
}
__device__ __forceinline__ void give_turn(int group) { barrier_arrive(kTurnBarrier + (group ^ 1), kComputeThreads); }

}  // namespace kdtree

/* Where a compute thread is in its group. */
#pragma once

#include "ptx.cuh"
#include "tile.cuh"

namespace kdtree {

class Seat {
 public:
  __device__ __forceinline__ Seat()
      : warp_(uniform(threadIdx.x / 32 - kLoaderThreads / 32)) {}

  __device__ __forceinline__ uint32_t lane() const { return lane_id(); }
  __device__ __forceinline__ uint32_t group() const { return warp_ / kGroupWarps; }
  /* In the group. */
  __device__ __forceinline__ uint32_t warp() const { return warp_ % kGroupWarps; }
  /* The row of the tile that the thread has a part of in the softmax. */
  __device__ __forceinline__ uint32_t row() const { return warp_ * kOwnedRows + lane() / 4; }

  /* The outbox of the group's warp `warp`, in bytes from the shared memory's start. */
  __device__ __forceinline__ uint32_t outbox(uint32_t warp) const {
    return Shared::kOutboxes + (group() * kGroupWarps + warp) * kOutboxBytes;
  }

 private:
  const int warp_;
};

}  // namespace kdtree

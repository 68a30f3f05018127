/* Filling a stage with rows from global memory: by bulk copies, each warp 8 rows of its own.
 */
#pragma once

#include "barriers.cuh"
#include "ptx.cuh"

namespace kdtree {

constexpr int kFillingWarps = 4;
constexpr int kRowsPerWarp = kKeys / kFillingWarps;
constexpr uint32_t kAllRows = (1u << kRowsPerWarp) - 1;
static_assert(kGroupWarps == kFillingWarps && kLoaderThreads == 32 * kFillingWarps);

/* One of the four warps that fill a stage together. */
class Filler {
 public:
  __device__ __forceinline__ Filler(unsigned char* shared, int warp) : shared_(shared), warp_(warp) {}

  /* The row of a stage that this lane copies, if it is one of the first 8 lanes. */
  __device__ __forceinline__ int row() const { return warp_ * kRowsPerWarp + lane_id(); }
  __device__ __forceinline__ static bool copies() { return lane_id() < kRowsPerWarp; }
  /* The warp's row i of 8. */
  __device__ __forceinline__ uint32_t address(int count, int i) const {
    return shared_address(shared_) + Shared::kStages + count % 2 * Shared::kStageBytes +
           (warp_ * kRowsPerWarp + i) * kKeyPitch;
  }

  /* Starts to fill this warp's rows of step `count`'s stage: with `bytes` bytes from `from`, or with zeros where it is
   * NULL, so that no bit pattern of another request or of an unused slot ever enters a product. Returns which of the
   * rows exist; unless it is kAllRows, fence_stores_before_bulk_copies must follow before the stage is filled again. */
  __device__ __forceinline__ uint32_t start(int count, const void* from, uint32_t bytes, int offset = 0) const {
    const uint32_t rows = __ballot_sync(~0u, from != nullptr);
    if (lane_id() == 0) mbarrier_expect(barrier(count), __popc(rows) * bytes);
    __syncwarp();
    const uint32_t to = address(count, 0) + offset;
    if (rows == kAllRows) {
      // A copy's operands are its warp's. With each lane's own, the compiler makes a loop of 100 clocks a row.
#pragma unroll
      for (int first = 0; first < kRowsPerWarp; first += kAtOnce) {
        const void* row[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) row[i] = shuffle(from, first + i);
        if (elect()) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i)
            copy_bulk(to + (first + i) * kKeyPitch, row[i], bytes, barrier(count));
        }
      }
      return rows;
    }
    if (from != nullptr) copy_bulk(to + lane_id() * kKeyPitch, from, bytes, barrier(count));
    zero(count, ~rows);
    return rows;
  }

  /* Until all four warps' copies, and this warp's zeros, have come. */
  __device__ __forceinline__ void wait(int count) const {
    mbarrier_wait(barrier(count), count / 2 % 2);
    __syncwarp();
  }

 private:
  static constexpr int kAtOnce = 4;

  __device__ __forceinline__ uint32_t barrier(int count) const {
    return shared_address(shared_) + Shared::kCopyBarriers + count % 2 * 8;
  }

  __device__ __forceinline__ void zero(int count, uint32_t rows) const {
#pragma unroll 1
    for (int i = 0; i < kRowsPerWarp; ++i) {
      if (rows >> i & 1) {
#pragma unroll 1
        for (int at = lane_id() * 16; at < kKeyPitch; at += 512)
          store_shared(address(count, i) + at, 0, 0, 0, 0);
      }
    }
  }

  unsigned char* const shared_;
  const int warp_;
};

}  // namespace kdtree

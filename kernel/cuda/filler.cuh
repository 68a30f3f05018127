/* Filling a stage with rows from global memory: by bulk copies, each warp 8 rows of its own.
 */
#pragma once

#include "barriers.cuh"
#include "ptx.cuh"

namespace kdtree {

constexpr int kFillingWarps = 4;
constexpr int kRowsPerWarp = kKeys / kFillingWarps;
static_assert(kGroupWarps == kFillingWarps && kLoaderThreads == 32 * kFillingWarps);

/* What is copied where a row does not exist, so that no bit pattern of another request or of an unused slot ever enters
 * a product. Never written. They are many, that not all multiprocessors ask the same few lines of the L2 for them. */
constexpr int kZeroRows = 64;
__device__ __align__(128) char zero_rows[kZeroRows][KDTREE_QK_DIM * 2];

/* One of the four warps that fill a stage together. */
class Filler {
 public:
  __device__ __forceinline__ Filler(unsigned char* shared, int warp) : shared_(shared), warp_(warp) {}

  /* The row of a stage that this lane copies, if it is one of the first 8 lanes. */
  __device__ __forceinline__ int row() const { return warp_ * kRowsPerWarp + lane_id(); }
  __device__ __forceinline__ static bool copies() { return lane_id() < kRowsPerWarp; }
  /* What it copies if it has none. */
  __device__ __forceinline__ const char* zeros() const { return zero_rows[(blockIdx.x + row()) % kZeroRows]; }
  /* The warp's row i of 8. */
  __device__ __forceinline__ uint32_t address(int count, int i) const {
    return shared_address(shared_) + Shared::kStages + count % 2 * Shared::kStageBytes +
           (warp_ * kRowsPerWarp + i) * kKeyPitch;
  }

  /* Starts to fill this warp's rows of step `count`'s stage with `bytes` bytes each, from where `from` points in the
   * lanes that copies() tells. `signal`, of the step, waits for them, too. */
  __device__ __forceinline__ void start(int count, Signal signal, const void* from, uint32_t bytes,
                                        int offset = 0) const {
    const uint32_t barrier = barrier_of(shared_, signal, count), to = address(count, 0) + offset;
    if (lane_id() == 0) mbarrier_expect(barrier, kRowsPerWarp * bytes);
    __syncwarp();
    // A copy's operands are its warp's. With each lane's own, the compiler makes a loop of 100 clocks a row.
#pragma unroll
    for (int first = 0; first < kRowsPerWarp; first += kAtOnce) {
      const void* row[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) row[i] = shuffle(from, first + i);
      if (elect()) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) copy_bulk(to + (first + i) * kKeyPitch, row[i], bytes, barrier);
      }
    }
  }

 private:
  static constexpr int kAtOnce = 4;

  unsigned char* const shared_;
  const int warp_;
};

}  // namespace kdtree

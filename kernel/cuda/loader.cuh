/* Fills a stage: warp w copies rows 4w .. 4w+3 of a step's 32. What must not be read, or is not there, becomes zeros,
 * so that no bit pattern of another request or of an unused slot ever enters a product.
 */
#pragma once

#include "ptx.cuh"
#include "segment.cuh"

namespace kdtree {

class Loader {
 public:
  /* Slots of the prefix that lie outside the pool are added to `refused`: each once per request, by the tile that holds
   * the request's first row. */
  __device__ __forceinline__ Loader(const kdtree_verify_args& args, const Segment& segment, unsigned char* shared,
                                    unsigned long long* refused)
      : args_(args), segment_(segment), shared_(shared), refused_(refused) {}

  /* Starts copying a step's slots, which fetch_rows(step) needs after a copy_wait. */
  __device__ __forceinline__ void fetch_slots(int step) const {
    const Thread me = this_thread();
    if (me.lane >= kKeysPerWarp || step >= segment_.prefix_steps) return;
    const int64_t key = segment_.first_key(step) + key_of(me);
    if (key >= segment_.request.prefix_len) return;
    const int64_t entry = segment_.request.prefix + key;
    const uint32_t to = shared_address(slot(me, step));
    if (args_.kv_indices_dtype == KDTREE_I64)
      copy_element_async<8>(to, static_cast<const int64_t*>(args_.kv_indices) + entry);
    else
      copy_element_async<4>(to, static_cast<const int32_t*>(args_.kv_indices) + entry);
  }

  /* Starts copying a step's rows into stage step % 2. */
  __device__ __forceinline__ void fetch_rows(int step) const {
    const Thread me = this_thread();
    const void* const mine = me.lane < kKeysPerWarp ? row(me, step) : nullptr;
    const unsigned valid = __ballot_sync(~0u, mine != nullptr);
    if (me.lane == 0) shared_[Shared::kValid + step % 2 * kWarps + me.warp] = static_cast<unsigned char>(valid);

    const uint32_t to = shared_address(shared_ + Shared::kStages + step % 2 * Shared::kStageBytes +
                                       me.warp * kKeysPerWarp * kKeyPitch + me.lane * 16);
#pragma unroll
    for (int r = 0; r < kKeysPerWarp; ++r) {
      const char* const from = broadcast(mine, r);
#pragma unroll
      for (int part = 0; part < kLatentParts; ++part)
        copy(to + r * kKeyPitch + part * 512, from, me.lane * 16 + part * 512);
    }
    if (segment_.kind(step) == Step::kDraftValues) return;
    // The rope columns of all four rows in one go: eight lanes a row.
    const int byte = KDTREE_V_DIM * 2 + me.lane % 8 * 16;
    copy(to + me.lane / 8 * (kKeyPitch - 128) + KDTREE_V_DIM * 2, broadcast(mine, me.lane / 8), byte);
  }

 private:
  static constexpr int kKeysPerWarp = kKeys / kWarps;
  static constexpr int kLatentParts = KDTREE_V_DIM * 2 / 512;
  static_assert(kKeysPerWarp == 4 && (KDTREE_QK_DIM - KDTREE_V_DIM) * 2 == 128);

  __device__ __forceinline__ static int key_of(Thread me) { return me.warp * kKeysPerWarp + me.lane; }

  __device__ __forceinline__ static const char* broadcast(const void* p, int from_lane) {
    return reinterpret_cast<const char*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(p), from_lane));
  }

  __device__ __forceinline__ void copy(uint32_t to, const char* row, int byte) const {
    const bool valid = row != nullptr;
    copy_async(to, valid ? row + byte : static_cast<const char*>(args_.q), valid);
  }

  /* Where a lane's slot of a step lies. Only that lane writes and reads it. */
  __device__ __forceinline__ unsigned char* slot(Thread me, int step) const {
    return shared_ + Shared::kSlots + (step % 2 * kKeys + key_of(me)) * 8;
  }

  /* The lane's row of a step, or NULL where there is none. */
  __device__ __forceinline__ const void* row(Thread me, int step) const {
    const Request& r = segment_.request;
    const int64_t key = segment_.first_key(step) + key_of(me);
    const Step kind = segment_.kind(step);
    if (kind == Step::kPrefix) {
      if (key >= r.prefix_len) return nullptr;
      const int64_t index = load_index(slot(me, step), args_.kv_indices_dtype, 0);
      if (index < 0 || index >= args_.slots) {
        if (segment_.first_row == 0) atomicAdd(refused_, 1ull);
        return nullptr;
      }
      return static_cast<const uint16_t*>(args_.pool) + index * args_.pool_stride_slot;
    }
    if (key >= r.rows) return nullptr;
    return kind == Step::kDraftKeys ? static_cast<const uint16_t*>(args_.k) + (r.row + key) * args_.k_stride_token
                                    : static_cast<const uint16_t*>(args_.v) + (r.row + key) * args_.v_stride_token;
  }

  const kdtree_verify_args& args_;
  const Segment& segment_;
  unsigned char* const shared_;
  unsigned long long* const refused_;
};

}  // namespace kdtree

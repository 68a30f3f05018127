/* The loader warps: they fill the stages with keys and draft values.
 *
 * With a stage go 32 bits, 8 of each loader warp's rows: of a prefix, which keys exist; of draft values, whether one is
 * NaN or Inf (not 0).
 *
 * Rows of an fp8 pool are copied to the end of the places that they fill as float16, then widened in place.
 */
#pragma once

#include "filler.cuh"
#include "scores.cuh"

namespace kdtree {

template <bool fp8_pool>
class Loader {
 public:
  __device__ __forceinline__ Loader(const kdtree_verify_args& args, Plan& plan, unsigned char* shared)
      : args_(args), plan_(plan), shared_(shared), warp_(uniform(threadIdx.x / 32)), filler_(shared, warp_) {}

  __device__ __forceinline__ void run() const {
#pragma unroll 1
    for (int number = 0;; ++number) {
      wait(shared_, Signal::kDescribed, number);
      const Segment& segment = segment_of(shared_, number);
      if (segment.last) return;
      load(segment, segment.first_step);
      tell(shared_, Signal::kThrough, number);
    }
  }

 private:
  /* Until step `count` may be loaded, the one before it in its stage having been read. That its copies had come is known
   * then; but no phase of an mbarrier shall go by without a wait, says compute-sanitizer's synccheck. */
  __device__ __forceinline__ void wait_empty(int count) const {
    if (count < 2) return;
    wait(shared_, Signal::kCopied, count - 2);
    wait(shared_, Signal::kEmpty, count - 2);
  }

  /* All steps of a segment from `count` on, which are those of keys and draft values. */
  __device__ __forceinline__ void load(const Segment& segment, int count) const {
    int left = segment.prefix_keys;
    Slot slot = fetch_slot(segment, left);
#pragma unroll 1
    for (; left > 0; ++count) {
      const bool mine = has_key(left), exists = mine && is_in_pool(slot);
      if (mine && !exists) refuse(segment);
      const void* const from = exists ? row_of(slot) : filler_.zeros();
      left -= kKeys;
      slot = fetch_slot(segment, left);  // it has come by the next step, or, of an fp8 pool, by its prefetch
      wait_empty(count);
      tell_bits(count, __ballot_sync(~0u, exists));
      if constexpr (fp8_pool) {
        filler_.start(count, Signal::kCopied, from, KDTREE_QK_DIM, kFp8Offset);
        prefetch(has_key(left) && is_in_pool(slot) ? row_of(slot) : nullptr);
        fence_stores_before_bulk_copies();  // those of the step before, whose stage is filled next
        wait_copied(count);
        if (args_.pool_dtype == KDTREE_F8_E4M3)
          widen<true>(count);
        else
          widen<false>(count);
        tell(shared_, Signal::kFull, count);
      } else {
        filler_.start(count, Signal::kFull, from, KDTREE_QK_DIM * 2);
        tell_unseen(count);
      }
    }
    if (fp8_pool) fence_stores_before_bulk_copies();
    const int end = count + segment.draft_steps;
    int started = count;  // steps before this one have been
    const auto start = [&](int upto, int first) {
#pragma unroll 1
      for (; started < upto; ++started) {
        wait_empty(started);
        const bool keys = (end - started) % 2 == 0;
        filler_.start(started, keys ? Signal::kFull : Signal::kCopied,
                      draft_row(segment, keys, first + filler_.row()), (keys ? KDTREE_QK_DIM : KDTREE_V_DIM) * 2);
      }
    };
#pragma unroll 1
    for (int first = segment.draft_key; count < end; count += 2, first += kKeys) {
      // Where a segment begins, nothing holds its values up: they come with its keys.
      start(count == segment.first_step ? count + 2 : count + 1, first);
      mark_visible(segment, first);
      tell_unseen(count);
      start(count + 2, first);
      wait_copied(count + 1);
      find_nonfinite(count + 1);
      tell(shared_, Signal::kFull, count + 1);
    }
  }

  /* A step's copies, where loaders look at them. */
  __device__ __forceinline__ void wait_copied(int count) const {
    tell(shared_, Signal::kCopied, count);
    wait(shared_, Signal::kCopied, count);
    __syncwarp();
  }
  /* And where they do not: the groups wait for them. */
  __device__ __forceinline__ void tell_unseen(int count) const {
    tell(shared_, Signal::kCopied, count);
    tell(shared_, Signal::kFull, count);
  }

  /* An entry of kv_indices as it was read: to make a number of it at once would be to wait for it. */
  struct Slot {
    int32_t low, high;
    __device__ __forceinline__ int64_t number(const kdtree_verify_args& args) const {
      return args.kv_indices_dtype == KDTREE_I64 ? int64_t{high} << 32 | static_cast<uint32_t>(low) : int64_t{low};
    }
  };

  /* Whether this lane has a key of a step of the prefix, with `left` keys of the segment still to load; its slot. */
  __device__ __forceinline__ bool has_key(int left) const { return Filler::copies() && filler_.row() < left; }
  __device__ __forceinline__ Slot fetch_slot(const Segment& segment, int left) const {
    if (!has_key(left)) return {};
    const int wide = args_.kv_indices_dtype == KDTREE_I64;
    const int64_t entry = segment.entry + (segment.prefix_keys - left + filler_.row());
    const int32_t* const words = static_cast<const int32_t*>(args_.kv_indices) + (entry << wide);
    return {words[0], wide ? words[1] : 0};
  }
  __device__ __forceinline__ bool is_in_pool(const Slot& slot) const {
    return slot.number(args_) >= 0 && slot.number(args_) < args_.slots;
  }
  /* Its row of the pool. */
  __device__ __forceinline__ const char* row_of(const Slot& slot) const {
    return static_cast<const char*>(args_.pool) + slot.number(args_) * args_.pool_stride_slot * kPoolBytes;
  }
  static constexpr int kPoolBytes = fp8_pool ? 1 : 2;  // of an element

  /* Brings the rows of the warp's next step to the L2, `row` that of this lane, while the copies of this one come. Where
   * widening follows them, the groups wait for what they take; bf16 rows have come by the time they are wanted. */
  __device__ __forceinline__ void prefetch(const char* row) const {
    constexpr int kLanes = 32 / kRowsPerWarp, kLine = 128;
    const char* const own = static_cast<const char*>(shuffle(row, lane_id() / kLanes));
    if (own == nullptr) return;
#pragma unroll
    for (int at = 0; at < KDTREE_QK_DIM * kPoolBytes; at += kLine * kLanes) {
      const int offset = at + lane_id() % kLanes * kLine;
      if (offset < KDTREE_QK_DIM * kPoolBytes) prefetch_line(own + offset);
    }
  }
  /* Counts a slot outside the pool: once per request, by the tile that holds the request's first row. */
  __device__ __forceinline__ void refuse(const Segment& segment) const {
    if (segment.first_row == 0) atomicAdd(&plan_.refused, 1ull);
  }

  /* Where this lane's row of a block of draft keys or values lies. */
  __device__ __forceinline__ const void* draft_row(const Segment& segment, bool keys, int key) const {
    if (!Filler::copies() || key >= segment.request.rows) return filler_.zeros();
    return static_cast<const uint16_t*>(keys ? args_.k : args_.v) +
           (segment.request.row + key) * (keys ? args_.k_stride_token : args_.v_stride_token);
  }

  __device__ __forceinline__ void tell_bits(int count, uint32_t bits) const {
    if (lane_id() == 0) shared_[Shared::kStageBits + count % 2 * 4 + warp_] = static_cast<unsigned char>(bits);
  }

  static constexpr int kFp8Offset = kKeyPitch - KDTREE_QK_DIM;
  static_assert(kFp8Offset % 16 == 0);

  /* Turns this warp's rows into float16, so that what is written has been read: of a row 256 elements, by a lane's 8
   * each, and 256 more; then the last 64 of four rows together. While elements are widened, the next ones come. */
  template <bool e4m3>
  __device__ __forceinline__ void widen(int count) const {
    constexpr int kSpan = 256, kRest = KDTREE_QK_DIM % kSpan, kRowsAtOnce = kSpan / kRest;
    constexpr int kAhead = 3;  // loads; a fourth would take a register more than there are
    static_assert(kRest * kRowsAtOnce == kSpan && KDTREE_QK_DIM / kSpan == 2);
    static_assert(kFp8Offset >= kSpan * 2, "the first elements go where nothing is to read");
    static_assert(kFp8Offset + 2 * kSpan >= kSpan * 4, "and the next ones only over themselves and the first");
    uint32_t raw[kAhead][2];
    const uint32_t from = filler_.address(count, 0) + kFp8Offset + lane_id() * 8;
    const uint32_t to = filler_.address(count, 0) + lane_id() * 16;
    const auto load = [&](int part) { load_shared(raw[part % kAhead], from + part / 2 * kKeyPitch + part % 2 * kSpan); };
    constexpr int kParts = 2 * kRowsPerWarp;
#pragma unroll
    for (int part = 0; part < kAhead; ++part) load(part);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part % 2 == 1) __syncwarp();
      store_widened<e4m3>(to + part / 2 * kKeyPitch + part % 2 * kSpan * 2, raw[part % kAhead]);
      if (part + kAhead < kParts) load(part + kAhead);
    }
    constexpr int kLanes = 32 / kRowsAtOnce;  // of a row
    const auto rest_row = [&](int i) { return filler_.address(count, i * kRowsAtOnce + lane_id() / kLanes); };
#pragma unroll
    for (int i = 0; i < kRowsPerWarp / kRowsAtOnce; ++i)
      load_shared(raw[i], rest_row(i) + kFp8Offset + 2 * kSpan + lane_id() % kLanes * 8);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowsPerWarp / kRowsAtOnce; ++i)
      store_widened<e4m3>(rest_row(i) + 2 * kSpan * 2 + lane_id() % kLanes * 16, raw[i]);
  }

  template <bool e4m3>
  __device__ __forceinline__ static void store_widened(uint32_t to, const uint32_t (&raw)[2]) {
    store_shared(to, f16_of_fp8<e4m3>(raw[0] & 0xffff), f16_of_fp8<e4m3>(raw[0] >> 16),
                 f16_of_fp8<e4m3>(raw[1] & 0xffff), f16_of_fp8<e4m3>(raw[1] >> 16));
  }

  /* Which of its eight draft keys a row may see, as the tree mask says, for the threads of the groups that have this
   * thread's place in them. */
  __device__ __forceinline__ void mark_visible(const Segment& segment, int first) const {
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      const int lane = lane_id(), row = group * kGroupRows + warp_ * kOwnedRows + lane / 4;
      uint32_t bits = 0;
      if (row < segment.rows) {
        const DraftMask mask(args_, segment.request, (segment.first_row + row) / args_.num_heads);
        const int base = first + key_of(lane, 0), left = static_cast<int>(segment.request.rows) - base;
        const uint8_t* const bytes = mask.bytes();
        if (bytes != nullptr) {
          uint32_t seen[8];  // loaded all at once, and looked at then
#pragma unroll
          for (int i = 0; i < 8; ++i) seen[i] = key_of(0, i) < left ? bytes[base + key_of(0, i)] : 0;
#pragma unroll
          for (int i = 0; i < 8; ++i) bits |= static_cast<uint32_t>(seen[i] != 0) << i;
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            bits |= static_cast<uint32_t>(key_of(0, i) < left && mask.sees(base + key_of(0, i))) << i;
        }
      }
      shared_[Shared::kVisible + group * kGroupThreads + warp_ * 32 + lane] = static_cast<unsigned char>(bits);
    }
  }

  /* Tells whether one of the draft values that have come is NaN or Inf. */
  __device__ __forceinline__ void find_nonfinite(int count) const {
    bool nonfinite = false;
#pragma unroll 1
    for (int i = 0; i < kRowsPerWarp; ++i) {
#pragma unroll
      for (int at = 0; at < KDTREE_V_DIM * 2; at += 512) {
        uint32_t pairs[4];
        load_shared(pairs, filler_.address(count, i) + lane_id() * 16 + at);
#pragma unroll
        for (int e = 0; e < 4; ++e) nonfinite |= has_nonfinite(pairs[e]);
      }
    }
    tell_bits(count, __any_sync(~0u, nonfinite));
  }

  const kdtree_verify_args& args_;
  Plan& plan_;
  unsigned char* const shared_;
  const int warp_;
  const Filler filler_;
};

}  // namespace kdtree

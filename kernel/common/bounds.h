// What the indptrs, indices and mask offsets of a call may make a library read, and what it does with a
// value that points outside. Both libraries use these functions, so that they refuse the same reads and
// count the same numbers in kdtree_layer_record.out_of_range.
//
// The rule, per request b:
//   1. Query window [qo_indptr[b], qo_indptr[b+1]): clamped to [0, tokens], its end to at least its begin.
//      A changed window counts 1. kdtree_verify then cuts it to max_q_len rows; a cut counts 1. The rows
//      that remain are T. A request with T = 0 counts nothing more, and nothing more of it is read than
//      its entries of the three indptrs.
//   2. Prefix window [kv_indptr[b], kv_indptr[b+1]): clamped to [0, kv_indices_len] in the same way; a
//      changed window counts 1. What remains is L.
//   3. A slot kv_indices[i], i in the prefix window, outside [0, slots): that key is skipped for every row
//      of the request, as if it were not there. Counts 1 per entry, however often it is read.
//   4. Mask block [mask_indptr[b], mask_indptr[b] + T*(L+T)), with T and L of the windows above: if it does
//      not lie within [0, mask_len), none of it is read, the request's rows see no draft key, and that
//      counts 1.
// Windows that overlap are legal reads. Nobody orders what two requests store to a row that both name: each part of it
// that is stored on its own, like the 128 columns of a warp of the CUDA library, is either one's result.
// kdtree_compare follows 1 (without max_q_len) and 2, and reads kv_indices only to know a padded request. What goes to
// a box follows all of them; there a slot out of range counts in the box's header.
#ifndef KDTREE_COMMON_BOUNDS_H
#define KDTREE_COMMON_BOUNDS_H

#include <cstdint>

#include "kdtree_verify.h"

#ifdef __CUDACC__
#define KDTREE_HD __host__ __device__ __forceinline__
#else
#define KDTREE_HD inline
#endif

namespace kdtree {

// Element i of an array of KDTREE_I32 or KDTREE_I64.
KDTREE_HD int64_t load_index(const void* array, int32_t dtype, int64_t i) {
#ifdef __CUDA_ARCH__
  // Without a branch: a kernel has this in a dozen places.
  const int wide = dtype == KDTREE_I64;
  const int32_t* const words = static_cast<const int32_t*>(array) + (i << wide);
  const int32_t low = words[0], high = wide ? words[1] : low >> 31;
  return static_cast<int64_t>(high) << 32 | static_cast<uint32_t>(low);
#else
  return dtype == KDTREE_I64 ? static_cast<const int64_t*>(array)[i]
                             : static_cast<int64_t>(static_cast<const int32_t*>(array)[i]);
#endif
}

struct Window {
  int64_t begin;
  int64_t length;
  int refused;  // what this window adds to out_of_range
};

KDTREE_HD Window load_window(const void* indptr, int32_t dtype, int64_t request, int64_t count) {
  const int64_t begin = load_index(indptr, dtype, request);
  const int64_t end = load_index(indptr, dtype, request + 1);
  const int64_t safe_begin = begin < 0 ? 0 : begin > count ? count : begin;
  const int64_t safe_end = end < safe_begin ? safe_begin : end > count ? count : end;
  return {safe_begin, safe_end - safe_begin, safe_begin != begin || safe_end != end};
}

// The windows of one request of kdtree_verify.
struct Request {
  int64_t row;           // first query row
  int64_t rows;          // T
  int64_t prefix;        // first entry of kv_indices
  int64_t prefix_len;    // L
  int64_t mask;          // first byte of the mask block; meaningless where sees_drafts is false or mask is NULL
  bool sees_drafts;      // false: the mask block was refused
  int refused;           // what rules 1, 2 and 4 add to out_of_range
};

KDTREE_HD Request load_request(const kdtree_verify_args& args, int64_t request) {
  Request r = {};
  // All that is needed is read before any of it is looked at: on a device the latencies overlap.
  const int64_t mask = args.mask != nullptr ? load_index(args.mask_indptr, args.mask_indptr_dtype, request) : 0;
  const Window rows = load_window(args.qo_indptr, args.qo_indptr_dtype, request, args.tokens);
  const Window prefix = load_window(args.kv_indptr, args.kv_indptr_dtype, request, args.kv_indices_len);
  const bool cut = rows.length > args.max_q_len;
  r.row = rows.begin;
  r.rows = cut ? args.max_q_len : rows.length;
  r.refused = rows.refused + cut;
  if (r.rows == 0) return r;

  r.prefix = prefix.begin;
  r.prefix_len = prefix.length;
  r.refused += prefix.refused;

  r.sees_drafts = true;
  if (args.mask != nullptr) {
    r.mask = mask;
    const int64_t bytes = r.rows * (r.prefix_len + r.rows);  // no overflow: counts are limited to MAX_COUNT
    r.sees_drafts = r.mask >= 0 && r.mask <= args.mask_len && bytes <= args.mask_len - r.mask;
    r.refused += !r.sees_drafts;
  }
  return r;
}

// Which draft keys row t of a request may see; t lies in [0, T).
class DraftMask {
 public:
  KDTREE_HD DraftMask(const kdtree_verify_args& args, const Request& r, int64_t t)
      : row_(args.mask != nullptr && r.sees_drafts
                 ? static_cast<const uint8_t*>(args.mask) + r.mask + t * (r.prefix_len + r.rows) + r.prefix_len
                 : nullptr),
        chain_(args.mask == nullptr ? static_cast<int>(t) : -1) {}
  // j lies in [0, T).
  KDTREE_HD bool sees(int j) const { return row_ != nullptr ? row_[j] != 0 : j <= chain_; }
  // T bytes, not 0 where the row sees the key; NULL where there are none to read.
  KDTREE_HD const uint8_t* bytes() const { return row_; }

 private:
  const uint8_t* row_;  // the row's bytes of draft keys, NULL where there is no mask or none of it is read
  int chain_;           // without a mask: the last key that is seen
};

// The slot of entry `i` of kv_indices, or -1 where it lies outside the pool.
KDTREE_HD int64_t load_slot(const kdtree_verify_args& args, int64_t i) {
  const int64_t slot = load_index(args.kv_indices, args.kv_indices_dtype, i);
  return slot >= 0 && slot < args.slots ? slot : -1;
}

// What kdtree_compare takes of one request: no row of a padded one (prefix 1 on slot 0).
struct ComparedRequest {
  int64_t begin, rows;  // query rows
  int64_t prefix_len;   // 0 where there are no rows
  int refused;
};

KDTREE_HD ComparedRequest load_compared(const kdtree_compare_args& args, int64_t request) {
  const Window rows = load_window(args.qo_indptr, args.qo_indptr_dtype, request, args.tokens);
  if (rows.length == 0) return {rows.begin, 0, 0, rows.refused};
  const Window prefix = load_window(args.kv_indptr, args.kv_indptr_dtype, request, args.kv_indices_len);
  const int refused = rows.refused + prefix.refused;
  const bool padded =
      prefix.length == 1 && load_index(args.kv_indices, args.kv_indices_dtype, prefix.begin) == 0;
  return padded ? ComparedRequest{rows.begin, 0, 0, refused}
                : ComparedRequest{rows.begin, rows.length, prefix.length, refused};
}

}  // namespace kdtree

#endif  // KDTREE_COMMON_BOUNDS_H

// What both libraries do to the box (kdtree_box_header): whether it is empty, what of a call goes there, and where.
#ifndef KDTREE_COMMON_BOX_H
#define KDTREE_COMMON_BOX_H

#include <cstdint>

#include "common/bounds.h"
#include "common/dtype.h"
#include "common/record.h"
#include "kdtree_verify.h"

namespace kdtree {

// One request's part of the box, in bytes: rows of `width`, one after the other.
struct BoxPart {
  int64_t offset, rows;
  int32_t width;
  KDTREE_HD int64_t end() const { return (offset + rows * width + 15) / 16 * 16; }
};

// What one call does to the box.
struct BoxClaim {
  uint64_t fill;               // its number
  double rel_l2;               // of the call
  unsigned long long refused;  // slots out of range, as they are found
  int32_t request;             // -1: nothing of this call goes there
  unsigned int done;           // CTAs that have copied their share
};

struct BoxLayout {
  BoxPart q, k, v, visible, prefix, stock, ours;
  KDTREE_HD int64_t bytes() const { return ours.end(); }
};

// Bytes of a row of each tensor of a call, which its dtypes say.
struct RowBytes {
  int32_t q, k, v, pool, out;
};

inline RowBytes row_bytes(const kdtree_verify_args& call, int32_t out_dtype) {
  const int kv = element_size(call.kv_dtype);
  return {KDTREE_QK_DIM * element_size(call.q_dtype), KDTREE_QK_DIM * kv, KDTREE_V_DIM * kv,
          KDTREE_QK_DIM * element_size(call.pool_dtype), KDTREE_V_DIM * element_size(out_dtype)};
}

// Counts are limited as checks.h has it: nothing here overflows.
KDTREE_HD BoxLayout box_layout(const kdtree_verify_args& call, const RowBytes& bytes, const Request& request) {
  const int64_t tokens = request.rows, rows = tokens * call.num_heads;
  BoxLayout layout;
  layout.q = {sizeof(kdtree_box_header), rows, bytes.q};
  layout.k = {layout.q.end(), tokens, bytes.k};
  layout.v = {layout.k.end(), tokens, bytes.v};
  layout.visible = {layout.v.end(), call.mask != nullptr ? tokens : 0, static_cast<int32_t>(tokens)};
  layout.prefix = {layout.visible.end(), request.prefix_len, bytes.pool};
  layout.stock = {layout.prefix.end(), rows, bytes.out};
  layout.ours = {layout.stock.end(), rows, bytes.out};
  return layout;
}

// Whether one request of a compared call, which is off by `sums`, breaks a bound itself and fits.
KDTREE_HD bool goes_to_box(const kdtree_compare_args& args, const kdtree_verify_args& call, const RowBytes& bytes,
                           uint64_t box_bytes, int64_t request, const CompareSums& sums) {
  if (!compare_outcome(sums, args.rel_l2_bound, args.max_abs_bound).exceeded) return false;
  return static_cast<uint64_t>(box_layout(call, bytes, load_request(call, request)).bytes()) <= box_bytes;
}

// Which of two such requests is further off: the one with NaN or Inf, then by relative L2.
KDTREE_HD double box_score(const CompareSums& sums) { return sums.nonfinite > 0 ? INFINITY : relative_l2(sums); }

// Whether a call that broke a bound may fill the box. Only then is the bus asked what the host has emptied.
KDTREE_HD bool finds_box_empty(kdtree_box_state* state, kdtree_box_header* memory) {
  if (static_cast<const volatile kdtree_box_header*>(memory)->emptied == state->filled) return true;
  publish(state->found_full, &memory->found_full, state->found_full + 1);
  return false;
}

// What is to be done for a call: `request` goes to the box, or none (-1); `wanted` is whether one should have.
KDTREE_HD BoxClaim claim_box(kdtree_box_state* state, kdtree_box_header* memory, bool wanted, int request,
                             double rel_l2) {
  if (request >= 0)
    ++state->filled;
  else if (wanted)
    publish(state->too_large, &memory->too_large, state->too_large + 1);
  return {state->filled, rel_l2, 0, request, 0};
}

// Everything of the header but `sealed`.
KDTREE_HD void describe_fill(kdtree_box_header* memory, const kdtree_compare_args& args,
                             const kdtree_verify_args& call, const RowBytes& bytes, uint64_t tag,
                             const BoxClaim& claim, uint64_t refused) {
  const Request found = load_request(call, claim.request);
  const BoxLayout layout = box_layout(call, bytes, found);
  memory->tag = tag;
  memory->rel_l2 = claim.rel_l2;
  memory->rel_l2_bound = args.rel_l2_bound;
  memory->prefix_len = found.prefix_len;
  memory->refused = refused;
  memory->request = claim.request;
  memory->batch = call.batch;
  memory->draft_tokens = static_cast<int32_t>(found.rows);
  memory->num_heads = call.num_heads;
  memory->q_dtype = call.q_dtype;
  memory->kv_dtype = call.kv_dtype;
  memory->pool_dtype = call.pool_dtype;
  memory->out_dtype = args.ours_dtype;
  memory->masked = call.mask != nullptr;
  memory->sm_scale = call.sm_scale;
  memory->k_scale = call.k_scale;
  memory->v_scale = call.v_scale;
  memory->q = layout.q.offset;
  memory->k = layout.k.offset;
  memory->v = layout.v.offset;
  memory->visible = layout.visible.offset;
  memory->prefix = layout.prefix.offset;
  memory->stock = layout.stock.offset;
  memory->ours = layout.ours.offset;
  memory->bytes = layout.bytes();
}

// Last of all: the host takes what it finds once it sees this.
KDTREE_HD void seal_box(kdtree_box_header* memory, uint64_t fill) {
  static_cast<volatile kdtree_box_header*>(memory)->sealed = fill;
}

}  // namespace kdtree

#endif  // KDTREE_COMMON_BOX_H

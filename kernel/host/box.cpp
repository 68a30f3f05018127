#include "host/box.h"

#include <atomic>
#include <cstring>

#include "common/bounds.h"
#include "common/box.h"
#include "common/dtype.h"

namespace kdtree {
namespace {

int furthest_request(const kdtree_compare_args& args, const RowBytes& bytes, const std::function<CompareSums(int64_t)>& measure) {
  int chosen = -1;
  double score = -1;
  for (int b = 0; b < args.batch; ++b) {
    const CompareSums sums = measure(b);
    if (sums.rows == 0 || box_score(sums) <= score) continue;
    if (!goes_to_box(args, *args.box->call, bytes, args.box->memory_bytes, b, sums)) continue;
    chosen = b;
    score = box_score(sums);
  }
  return chosen;
}

// What lies in the box of one request.
class Fill {
 public:
  Fill(const kdtree_compare_args& args, const RowBytes& bytes, int request)
      : args_(args),
        call_(*args.box->call),
        base_(reinterpret_cast<unsigned char*>(args.box->memory)),
        request_(load_request(call_, request)),
        layout_(box_layout(call_, bytes, request_)) {}

  // Returns how many slots are out of range.
  uint64_t copy() const {
    copy_heads(layout_.q, call_.q, call_.q_dtype, call_.q_stride_token, call_.q_stride_head);
    copy_tokens(layout_.k, call_.k, call_.k_stride_token);
    copy_tokens(layout_.v, call_.v, call_.v_stride_token);
    copy_heads(layout_.stock, args_.stock, args_.stock_dtype, args_.stock_stride_token, args_.stock_stride_head);
    copy_heads(layout_.ours, args_.ours, args_.ours_dtype, args_.ours_stride_token, args_.ours_stride_head);
    copy_visible();
    return copy_prefix();
  }

 private:
  unsigned char* row(const BoxPart& part, int64_t i) const { return base_ + part.offset + i * part.width; }

  void copy_heads(const BoxPart& part, const void* data, int32_t dtype, int64_t token_stride,
                  int64_t head_stride) const {
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t token = request_.row + i / call_.num_heads, head = i % call_.num_heads;
      const int64_t element = token * token_stride + head * head_stride;
      std::memcpy(row(part, i), static_cast<const unsigned char*>(data) + element * element_size(dtype), part.width);
    }
  }

  void copy_tokens(const BoxPart& part, const void* data, int64_t stride) const {
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t element = (request_.row + i) * stride;
      const auto* const from = static_cast<const unsigned char*>(data) + element * element_size(call_.kv_dtype);
      std::memcpy(row(part, i), from, part.width);
    }
  }

  void copy_visible() const {
    for (int64_t t = 0; t < layout_.visible.rows; ++t) {
      const DraftMask mask(call_, request_, t);
      for (int j = 0; j < layout_.visible.width; ++j) row(layout_.visible, t)[j] = mask.sees(j);
    }
  }

  uint64_t copy_prefix() const {
    const BoxPart& part = layout_.prefix;
    uint64_t refused = 0;
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t slot = load_slot(call_, request_.prefix + i);
      const int64_t byte = slot * call_.pool_stride_slot * element_size(call_.pool_dtype);
      refused += slot < 0;
      if (slot < 0)
        std::memset(row(part, i), 0, part.width);
      else
        std::memcpy(row(part, i), static_cast<const unsigned char*>(call_.pool) + byte, part.width);
    }
    return refused;
  }

  const kdtree_compare_args& args_;
  const kdtree_verify_args& call_;
  unsigned char* base_;
  Request request_;
  BoxLayout layout_;
};

}  // namespace

void offer_to_box(const kdtree_compare_args& args, double rel_l2,
                  const std::function<CompareSums(int64_t request)>& measure) {
  const kdtree_box_args& box = *args.box;
  if (!finds_box_empty(box.state, box.memory)) return;
  const RowBytes bytes = row_bytes(*box.call, args.ours_dtype);
  const BoxClaim claim = claim_box(box.state, box.memory, true, furthest_request(args, bytes, measure), rel_l2);
  if (claim.request < 0) return;
  const uint64_t refused = Fill(args, bytes, claim.request).copy();
  describe_fill(box.memory, args, *box.call, bytes, box.tag, claim, refused);
  std::atomic_thread_fence(std::memory_order_release);  // another thread takes it when it sees the seal
  seal_box(box.memory, claim.fill);
}

}  // namespace kdtree

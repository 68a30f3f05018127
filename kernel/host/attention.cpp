#include "host/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "host/convert.h"

namespace kdtree {
namespace {

// The running softmax of one row: weights are exp(score - highest), their sum is `weight`.
struct Softmax {
  double highest = -std::numeric_limits<double>::infinity();
  double weight = 0;
  bool seen = false;  // whether any key was visible
};

class Block {
 public:
  Block(const kdtree_verify_args& args, const Request& request, int64_t block, Scratch& scratch)
      : args_(args), request_(request), scratch_(scratch), first_(block * kBlockRows) {
    count_ = static_cast<int>(std::min<int64_t>(kBlockRows, request.rows * args.num_heads - first_));
    for (int r = 0; r < count_; ++r) {
      load_row(args.q, args.q_dtype, offset(r, args.q_stride_token, args.q_stride_head), KDTREE_QK_DIM, 1.0,
               scratch.query[r], 1);
      std::fill_n(scratch.sums[r], KDTREE_V_DIM, 0.0);
    }
  }

  void attend_prefix() {
    int keys = 0;
    for (int64_t i = 0; i < request_.prefix_len; ++i) {
      const int64_t slot = load_slot(args_, request_.prefix + i);
      if (slot < 0) continue;
      const int64_t row = slot * args_.pool_stride_slot;
      load_key(keys, args_.pool, args_.pool_dtype, row, args_.k_scale);
      load_value(keys, args_.pool, args_.pool_dtype, row, args_.v_scale);
      if (++keys == kTileKeys) {
        add_tile(keys, [](int64_t, int) { return true; });
        keys = 0;
      }
    }
    if (keys > 0) add_tile(keys, [](int64_t, int) { return true; });
  }

  void attend_drafts() {
    if (!request_.sees_drafts) return;
    for (int64_t first = 0; first < request_.rows; first += kTileKeys) {
      const int keys = static_cast<int>(std::min<int64_t>(kTileKeys, request_.rows - first));
      for (int n = 0; n < keys; ++n) {
        const int64_t token = request_.row + first + n;
        load_key(n, args_.k, args_.kv_dtype, token * args_.k_stride_token, 1.0);
        load_value(n, args_.v, args_.kv_dtype, token * args_.v_stride_token, 1.0);
      }
      add_tile(keys, [&](int64_t t, int n) { return DraftMask(args_, request_, t).sees(static_cast<int>(first + n)); });
    }
  }

  void store() {
    for (int r = 0; r < count_; ++r) {
      if (softmax_[r].seen)
        for (double& sum : scratch_.sums[r]) sum /= softmax_[r].weight;
      store_row(scratch_.sums[r], KDTREE_V_DIM, args_.out, args_.out_dtype,
                offset(r, args_.out_stride_token, args_.out_stride_head));
    }
  }

 private:
  int64_t token(int r) const { return (first_ + r) / args_.num_heads; }  // within the request
  int64_t offset(int r, int64_t stride_token, int64_t stride_head) const {
    return (request_.row + token(r)) * stride_token + (first_ + r) % args_.num_heads * stride_head;
  }

  void load_key(int n, const void* array, int32_t dtype, int64_t row, double scale) {
    load_row(array, dtype, row, KDTREE_QK_DIM, scale, &scratch_.keys[0][n], kTileKeys);
  }
  void load_value(int n, const void* array, int32_t dtype, int64_t row, double scale) {
    load_row(array, dtype, row, KDTREE_V_DIM, scale, scratch_.values[n], 1);
  }

  // Adds the tile's first `keys` keys to every row that may see them. A key that a row does not see takes
  // part in nothing of that row: 0 * NaN would.
  template <typename Visible>
  void add_tile(int keys, Visible visible) {
    for (int r = 0; r < count_; ++r) {
      const int64_t t = token(r);
      int seen[kTileKeys];
      int num_seen = 0;
      for (int n = 0; n < keys; ++n)
        if (visible(t, n)) seen[num_seen++] = n;
      if (num_seen == 0) continue;
      double scores[kTileKeys];
      score(scratch_.query[r], scores);
      double weights[kTileKeys];
      for (int i = 0; i < num_seen; ++i) weights[i] = scores[seen[i]] * args_.sm_scale;
      add_values(r, seen, weights, num_seen);
    }
  }

  // Lanes beyond the tile's keys hold stale numbers; their scores are not looked at.
  void score(const double* query, double* scores) const {
    double sums[kTileKeys] = {};
    for (int d = 0; d < KDTREE_QK_DIM; ++d)
      for (int n = 0; n < kTileKeys; ++n) sums[n] += query[d] * scratch_.keys[d][n];
    std::copy_n(sums, kTileKeys, scores);
  }

  // Turns scores into weights in place and adds the weighted values to the row's sums.
  void add_values(int r, const int* seen, double* weights, int num_seen) {
    Softmax& softmax = softmax_[r];
    double highest = softmax.highest;
    for (int i = 0; i < num_seen; ++i)
      if (weights[i] > highest || std::isnan(weights[i])) highest = weights[i];  // NaN stays: nothing exceeds it
    // Scores of -inf only: weights of 0 that a finite score may still follow.
    const double shift = std::isinf(highest) && highest < 0 ? 0.0 : highest;
    const double keep = std::exp(softmax.highest - shift);
    softmax.weight *= keep;
    for (int i = 0; i < num_seen; ++i) {
      weights[i] = std::exp(weights[i] - shift);
      softmax.weight += weights[i];
    }
    softmax.highest = highest;
    softmax.seen = true;

    constexpr int kStrip = 16;
    for (int d = 0; d < KDTREE_V_DIM; d += kStrip) {
      double* const sums = &scratch_.sums[r][d];
      double strip[kStrip];
      for (int x = 0; x < kStrip; ++x) strip[x] = sums[x] * keep;
      for (int i = 0; i < num_seen; ++i) {
        const double* const value = &scratch_.values[seen[i]][d];
        for (int x = 0; x < kStrip; ++x) strip[x] += weights[i] * value[x];
      }
      std::copy_n(strip, kStrip, sums);
    }
  }

  const kdtree_verify_args& args_;
  const Request& request_;
  Scratch& scratch_;
  const int64_t first_;  // of the request's (token, head) pairs
  int count_;
  Softmax softmax_[kBlockRows];
};

}  // namespace

void attend(const kdtree_verify_args& args, const Request& request, int64_t block, Scratch& scratch) {
  Block rows(args, request, block, scratch);
  rows.attend_prefix();
  rows.attend_drafts();
  rows.store();
}

}  // namespace kdtree

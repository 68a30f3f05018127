// The ABI's functions on the host: the tests' oracle, and what serves where there is no GPU. Rows are
// gathered from anywhere, converted exactly and computed in float64 by a few threads.
#include "common/library.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/bounds.h"
#include "common/checks.h"
#include "common/dtype.h"
#include "common/record.h"
#include "host/attention.h"
#include "host/box.h"
#include "host/convert.h"
#include "host/workers.h"
#include "kdtree_verify.h"

namespace kdtree {
namespace {

constexpr uint32_t kFloats = 1u << KDTREE_F32 | 1u << KDTREE_BF16;
constexpr uint32_t kFloat8 = 1u << KDTREE_F8_E4M3 | 1u << KDTREE_F8_E5M2;
constexpr const char* kVariants[] = {"float64"};
constexpr int kNoDevice = -1;
constexpr int64_t kPairsPerWorker = 4096;  // (row, key) pairs, about a millisecond: less is not worth a thread

}  // namespace

const Library library = {"host", "", kFloats, kFloats | kFloat8, kFloats, 1, 1, kVariants};

namespace {

int check_device(int device, const void* stream) {
  return device == kNoDevice && stream == nullptr ? KDTREE_OK : KDTREE_ERR_DEVICE;
}

uint64_t workspace_bytes() { return sizeof(Scratch) * worker_limit(); }

struct Totals {
  int64_t rows = 0;
  int64_t blocks = 0;
  int64_t pairs = 0;  // (token, head, key)
  uint64_t out_of_range = 0;
};

Totals survey(const kdtree_verify_args& args) {
  Totals totals;
  for (int b = 0; b < args.batch; ++b) {
    const Request request = load_request(args, b);
    totals.rows += request.rows;
    totals.blocks += blocks_of(request, args.num_heads);
    totals.pairs += request.rows * args.num_heads * (request.prefix_len + request.rows);
    totals.out_of_range += request.refused;
    if (request.rows == 0) continue;
    for (int64_t i = 0; i < request.prefix_len; ++i) totals.out_of_range += load_slot(args, request.prefix + i) < 0;
  }
  return totals;
}

// Takes blocks, in the order of the batch, until none is left.
void work(const kdtree_verify_args& args, std::atomic<int64_t>& next_block, Scratch& scratch) {
  int64_t block = next_block++;
  int64_t first = 0;  // of the request's blocks
  for (int b = 0; b < args.batch; ++b) {
    const Request request = load_request(args, b);
    const int64_t end = first + blocks_of(request, args.num_heads);
    for (; block < end; block = next_block++) attend(args, request, block - first, scratch);
    first = end;
  }
}

void compare_row(const kdtree_compare_args& args, int64_t token, CompareSums& sums) {
  for (int h = 0; h < args.num_heads; ++h) {
    double stock[KDTREE_V_DIM];
    double ours[KDTREE_V_DIM];
    load_row(args.stock, args.stock_dtype, token * args.stock_stride_token + h * args.stock_stride_head,
             KDTREE_V_DIM, 1.0, stock, 1);
    load_row(args.ours, args.ours_dtype, token * args.ours_stride_token + h * args.ours_stride_head, KDTREE_V_DIM,
             1.0, ours, 1);
    for (int d = 0; d < KDTREE_V_DIM; ++d) {
      if (!std::isfinite(stock[d])) continue;
      if (!std::isfinite(ours[d])) {
        ++sums.nonfinite;
        continue;
      }
      const double diff = std::fabs(ours[d] - stock[d]);
      sums.max_abs = std::max(sums.max_abs, diff);
      sums.sum_sq_diff += diff * diff;
      sums.sum_sq_stock += stock[d] * stock[d];
    }
  }
}

CompareSums compare_request(const kdtree_compare_args& args, int64_t request) {
  const ComparedRequest found = load_compared(args, request);
  CompareSums sums = {};
  sums.rows = static_cast<uint64_t>(found.rows);
  sums.requests = found.rows > 0;
  sums.longest_prefix = found.prefix_len;
  sums.out_of_range = static_cast<uint64_t>(found.refused);
  for (int64_t i = 0; i < found.rows; ++i) compare_row(args, found.begin + i, sums);
  return sums;
}

void add(CompareSums& sums, const CompareSums& other) {
  sums.rows += other.rows;
  sums.requests += other.requests;
  sums.longest_prefix = std::max(sums.longest_prefix, other.longest_prefix);
  sums.nonfinite += other.nonfinite;
  sums.out_of_range += other.out_of_range;
  sums.max_abs = std::max(sums.max_abs, other.max_abs);
  sums.sum_sq_diff += other.sum_sq_diff;
  sums.sum_sq_stock += other.sum_sq_stock;
}

}  // namespace
}  // namespace kdtree

extern "C" {

int kdtree_supports_device(int device) { return kdtree::check_device(device, nullptr); }

int kdtree_workspace_size(const kdtree_workspace_args* args, uint64_t* bytes) {
  int status = kdtree::check_workspace_args(args, bytes);
  if (status == KDTREE_OK) status = kdtree::check_device(args->device, nullptr);
  if (status == KDTREE_OK) *bytes = kdtree::workspace_bytes();
  return status;
}

int kdtree_verify(const kdtree_verify_args* args) {
  int status = kdtree::check_verify(args);
  if (status == KDTREE_OK) status = kdtree::check_device(args->device, args->stream);
  if (status == KDTREE_OK)
    status = kdtree::check_workspace(args->workspace, args->workspace_bytes, kdtree::workspace_bytes());
  if (status != KDTREE_OK) return status;

  const kdtree::Totals totals = kdtree::survey(*args);
  auto* const scratch = static_cast<kdtree::Scratch*>(args->workspace);
  const int64_t useful = std::min(totals.blocks, 1 + totals.pairs / kdtree::kPairsPerWorker);
  const int workers = static_cast<int>(std::min<int64_t>(kdtree::processors(), useful));
  std::atomic<int64_t> next_block{0};
  kdtree::run_workers(workers, [&](int worker) { kdtree::work(*args, next_block, scratch[worker]); });

  if (args->record != nullptr)
    kdtree::add_verify(args->record, args->mirror, static_cast<uint64_t>(totals.rows), totals.out_of_range);
  return KDTREE_OK;
}

int kdtree_compare(const kdtree_compare_args* args) {
  int status = kdtree::check_compare(args);
  if (status == KDTREE_OK) status = kdtree::check_device(args->device, args->stream);
  if (status != KDTREE_OK) return status;

  kdtree::CompareSums sums = {};
  for (int b = 0; b < args->batch; ++b) kdtree::add(sums, kdtree::compare_request(*args, b));
  const kdtree::Outcome outcome = kdtree::add_compare(*args, sums);
  if (args->box != nullptr && outcome.exceeded) {
    const auto measure = [&](int64_t request) { return kdtree::compare_request(*args, request); };
    kdtree::offer_to_box(*args, outcome.rel_l2, measure);
  }
  return KDTREE_OK;
}

int kdtree_count(uint64_t* counter, uint64_t* mirror, int device, void* stream) {
  if (counter == nullptr) return KDTREE_ERR_NULL_POINTER;
  const int status = kdtree::check_device(device, stream);
  if (status != KDTREE_OK) return status;
  kdtree::publish(*counter, mirror, *counter + 1);
  return KDTREE_OK;
}

int kdtree_stamp(uint64_t* slot, int device, void* stream) {
  int status = kdtree::check_stamp(slot);
  if (status == KDTREE_OK) status = kdtree::check_device(device, stream);
  if (status != KDTREE_OK) return status;
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  *slot = static_cast<uint64_t>(std::chrono::nanoseconds(since).count());
  return KDTREE_OK;
}

int kdtree_gate(const kdtree_gate_args* args) {
  int status = kdtree::check_gate(args);
  if (status == KDTREE_OK) status = kdtree::check_device(args->device, args->stream);
  if (status != KDTREE_OK) return status;
  const bool open = ((*args->counter)++ + args->phase) % args->every == 0;
  const auto gate = [&](const void* from, void* to, int32_t dtype) {
    const size_t bytes = (size_t{1} + args->batch) * kdtree::element_size(dtype);
    if (open)
      std::memcpy(to, from, bytes);
    else
      std::memset(to, 0, bytes);
  };
  gate(args->qo_indptr, args->gated_qo_indptr, args->qo_indptr_dtype);
  gate(args->kv_indptr, args->gated_kv_indptr, args->kv_indptr_dtype);
  return KDTREE_OK;
}

}  // extern "C"

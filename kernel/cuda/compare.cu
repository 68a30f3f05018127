/* kdtree_compare on the device.
 *
 * It is two launches, so that its sums are the same from run to run: `rows` leaves one partial sum per CTA in the
 * workspace, `total` (one CTA) adds them up in a fixed order and adds the call to the records. With a box it is three:
 * `total` decides whether the call goes there, and with which request; kdtree_fill_box copies (box.cu).
 */
#include "box.cuh"
#include "common/record.h"
#include "launch.h"
#include "warp.cuh"

namespace kdtree {
namespace {

constexpr int kCompareThreads = 256;
constexpr int kCompareWarps = kCompareThreads / 32;
constexpr int kCompareCtasPerMultiprocessor = 2;
constexpr int kVector = 8;  // bf16 elements in 16 bytes

/* The compared rows of the requests before each one. */
struct RowTable {
  int64_t before[KDTREE_MAX_BATCH + 1];
  int64_t warp_rows[kCompareWarps];
  unsigned long long refused, requests, longest_prefix;
};

struct RowsShared {
  RowTable table;
  CompareSums scratch[kCompareThreads];
};

struct TotalShared {
  CompareSums scratch[kCompareThreads];
  bool boxed;
};

/* All threads call it together. */
__device__ __forceinline__ void fill_table(const kdtree_compare_args& args, RowTable& table) {
  const int warp = threadIdx.x / 32;
  const int each = (args.batch + kCompareThreads - 1) / kCompareThreads;
  const int first = min(static_cast<int>(threadIdx.x) * each, args.batch), last = min(first + each, args.batch);
  if (threadIdx.x == 0) {
    table.refused = table.requests = table.longest_prefix = 0;
    table.before[args.batch] = 0;
  }

  int64_t rows = 0, longest_prefix = 0;
  unsigned long long refused = 0, requests = 0;
  for (int i = first; i < last; ++i) {
    const ComparedRequest request = load_compared(args, i);
    rows += request.rows;
    refused += request.refused;
    requests += request.rows > 0;
    longest_prefix = max(longest_prefix, request.prefix_len);
  }
  const int64_t upto = warp_prefix_sum(rows);
  if (threadIdx.x % 32 == 31) table.warp_rows[warp] = upto;
  __syncthreads();
  int64_t before = upto - rows;
  for (int w = 0; w < warp; ++w) before += table.warp_rows[w];
  for (int i = first; i < last; ++i) {
    table.before[i] = before;
    before += load_compared(args, i).rows;
  }
  if (first < last && last == args.batch) table.before[last] = before;
  if (refused > 0) atomicAdd(&table.refused, refused);
  if (requests > 0) {
    atomicAdd(&table.requests, requests);
    atomicMax(&table.longest_prefix, static_cast<unsigned long long>(longest_prefix));
  }
  __syncthreads();
}

/* The request that the `row`-th compared row belongs to. */
__device__ __forceinline__ int request_of(const RowTable& table, int batch, int64_t row) {
  int low = 0, high = batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.before[middle] <= row ? low : high) = middle;
  }
  return low;
}

__device__ __forceinline__ void add_pair(CompareSums& sums, uint32_t stock, uint32_t ours) {
  const float a = __uint_as_float(stock << 16), b = __uint_as_float(ours << 16);
  if (!isfinite(a)) return;
  if (!isfinite(b)) {
    ++sums.nonfinite;
    return;
  }
  const double difference = static_cast<double>(b) - a;
  sums.max_abs = fmax(sums.max_abs, fabs(difference));
  sums.sum_sq_diff += difference * difference;
  sums.sum_sq_stock += static_cast<double>(a) * a;
}

__device__ __forceinline__ void add_vectors(CompareSums& sums, uint4 stock, uint4 ours) {
  const uint32_t a[4] = {stock.x, stock.y, stock.z, stock.w}, b[4] = {ours.x, ours.y, ours.z, ours.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    add_pair(sums, a[i] & 0xffff, b[i] & 0xffff);
    add_pair(sums, a[i] >> 16, b[i] >> 16);
  }
}

/* One head of one token, its 512 columns shared by the lanes of a warp. */
__device__ __forceinline__ void add_row(CompareSums& sums, const kdtree_compare_args& args, int64_t token,
                                        int64_t head) {
  const uint16_t* const stock =
      static_cast<const uint16_t*>(args.stock) + token * args.stock_stride_token + head * args.stock_stride_head;
  const uint16_t* const ours =
      static_cast<const uint16_t*>(args.ours) + token * args.ours_stride_token + head * args.ours_stride_head;
  for (int vector = threadIdx.x % 32; vector < KDTREE_V_DIM / kVector; vector += 32)
    add_vectors(sums, reinterpret_cast<const uint4*>(stock)[vector], reinterpret_cast<const uint4*>(ours)[vector]);
}

__device__ __forceinline__ void add(CompareSums& sums, const CompareSums& other) {
  sums.rows += other.rows;
  sums.requests += other.requests;
  sums.longest_prefix = max(sums.longest_prefix, other.longest_prefix);
  sums.nonfinite += other.nonfinite;
  sums.out_of_range += other.out_of_range;
  sums.max_abs = fmax(sums.max_abs, other.max_abs);
  sums.sum_sq_diff += other.sum_sq_diff;
  sums.sum_sq_stock += other.sum_sq_stock;
}

/* The CTA's sum, in thread 0; the order of the additions depends on nothing but the CTA's size. */
__device__ __forceinline__ void reduce(CompareSums& sums, CompareSums (&scratch)[kCompareThreads]) {
  scratch[threadIdx.x] = sums;
  for (int half = kCompareThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) add(scratch[threadIdx.x], scratch[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) sums = scratch[0];
}

/* The request of a call out of bound that goes to the box, -1 where none does. One CTA reads the call's outputs once
 * more, which happens as often as the box is filled. All threads call it together; thread 0 gets the answer. */
__device__ __forceinline__ int furthest_request(const kdtree_compare_args& args, const BoxCall& box,
                                                CompareSums (&scratch)[kCompareThreads]) {
  int chosen = -1;
  double score = -1;
  for (int request = 0; request < args.batch; ++request) {
    const ComparedRequest found = load_compared(args, request);
    if (found.rows == 0) continue;
    CompareSums sums = {};
    for (int64_t i = threadIdx.x / 32; i < found.rows * args.num_heads; i += kCompareWarps)
      add_row(sums, args, found.begin + i / args.num_heads, i % args.num_heads);
    __syncthreads();  // the request before is done with
    reduce(sums, scratch);
    if (threadIdx.x == 0 && box_score(sums) > score &&
        goes_to_box(args, box.call, box.row_bytes, box.memory_bytes, request, sums)) {
      chosen = request;
      score = box_score(sums);
    }
  }
  return chosen;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kCompareThreads)
    kdtree_compare_rows(const __grid_constant__ kdtree_compare_args args, CompareSums* partial) {
  __shared__ RowsShared shared;
  const RowTable& table = shared.table;
  fill_table(args, shared.table);

  const int64_t rows = table.before[args.batch];
  CompareSums sums = {};
  for (int64_t i = int64_t{blockIdx.x} * kCompareWarps + threadIdx.x / 32; i < rows * args.num_heads;
       i += int64_t{gridDim.x} * kCompareWarps) {
    const int64_t row = i / args.num_heads, head = i - row * args.num_heads;
    const int request = request_of(table, args.batch, row);
    add_row(sums, args, load_compared(args, request).begin + (row - table.before[request]), head);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    sums.rows = rows;
    sums.requests = table.requests;
    sums.longest_prefix = static_cast<int64_t>(table.longest_prefix);
    sums.out_of_range = table.refused;
  }
  reduce(sums, shared.scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums;
}

/* `claim` is NULL where there is no box. */
extern "C" __global__ void __launch_bounds__(kCompareThreads)
    kdtree_compare_total(const __grid_constant__ kdtree_compare_args args, const __grid_constant__ BoxCall box,
                         const CompareSums* partial, int count, BoxClaim* claim) {
  __shared__ TotalShared shared;
  CompareSums sums = {};
  for (int i = threadIdx.x; i < count; i += kCompareThreads) add(sums, partial[i]);
  reduce(sums, shared.scratch);
  Outcome outcome = {};
  if (threadIdx.x == 0) outcome = add_compare(args, sums);
  if (claim == nullptr) return;

  if (threadIdx.x == 0) shared.boxed = outcome.exceeded && finds_box_empty(box.state, box.memory);
  __syncthreads();
  const int request = shared.boxed ? furthest_request(args, box, shared.scratch) : -1;
  if (threadIdx.x == 0) *claim = claim_box(box.state, box.memory, shared.boxed, request, outcome.rel_l2);
}

const Entry kCompareRows = {"kdtree_compare_rows", reinterpret_cast<const void*>(kdtree_compare_rows), kCompareThreads,
                            0};
const Entry kCompareTotal = {"kdtree_compare_total", reinterpret_cast<const void*>(kdtree_compare_total),
                             kCompareThreads, 0};

namespace {

constexpr uint64_t partial_bytes(int multiprocessors) {
  static_assert(sizeof(CompareSums) % alignof(BoxClaim) == 0);
  return uint64_t{kCompareCtasPerMultiprocessor} * multiprocessors * sizeof(CompareSums);
}

}  // namespace

uint64_t compare_workspace_bytes(int multiprocessors) { return partial_bytes(multiprocessors) + sizeof(BoxClaim); }

int launch_compare(const kdtree_compare_args& args, int multiprocessors) {
  kdtree_compare_args copy = args;
  CompareSums* partial = static_cast<CompareSums*>(args.workspace);
  int ctas = kCompareCtasPerMultiprocessor * multiprocessors;
  BoxCall box = args.box != nullptr ? box_call(*args.box, args.ours_dtype) : BoxCall{};
  BoxClaim* claim = nullptr;
  if (args.box != nullptr)
    claim = reinterpret_cast<BoxClaim*>(static_cast<unsigned char*>(args.workspace) + partial_bytes(multiprocessors));
  void* rows[] = {&copy, &partial};
  void* total[] = {&copy, &box, &partial, &ctas, &claim};
  int status = launch(kCompareRows, ctas, args.stream, rows);
  if (status == KDTREE_OK) status = launch(kCompareTotal, 1, args.stream, total);
  return status == KDTREE_OK && claim != nullptr ? launch_fill_box(copy, box, claim) : status;
}

}  // namespace kdtree

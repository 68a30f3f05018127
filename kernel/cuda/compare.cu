/* kdtree_compare and kdtree_count on the device.
 *
 * Compare is two launches, so that its sums are the same from run to run: `rows` leaves one partial sum per CTA in the
 * workspace, `total` (one CTA) adds them up in a fixed order and adds the call to the record.
 */
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
  unsigned long long refused;
};

/* All threads call it together. */
__device__ __forceinline__ void fill_table(const kdtree_compare_args& args, RowTable& table) {
  const int warp = threadIdx.x / 32;
  const int each = (args.batch + kCompareThreads - 1) / kCompareThreads;
  const int first = min(static_cast<int>(threadIdx.x) * each, args.batch), last = min(first + each, args.batch);
  if (threadIdx.x == 0) table.refused = 0, table.before[args.batch] = 0;

  int64_t rows = 0;
  unsigned long long refused = 0;
  for (int i = first; i < last; ++i) {
    const Window window = load_compared_rows(args, i);
    rows += window.length;
    refused += window.refused;
  }
  const int64_t upto = warp_prefix_sum(rows);
  if (threadIdx.x % 32 == 31) table.warp_rows[warp] = upto;
  __syncthreads();
  int64_t before = upto - rows;
  for (int w = 0; w < warp; ++w) before += table.warp_rows[w];
  for (int i = first; i < last; ++i) {
    table.before[i] = before;
    before += load_compared_rows(args, i).length;
    table.before[i + 1] = before;
  }
  if (refused > 0) atomicAdd(&table.refused, refused);
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

__device__ __forceinline__ void add(CompareSums& sums, const CompareSums& other) {
  sums.rows += other.rows;
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
  sums = scratch[0];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kCompareThreads)
    kdtree_compare_rows(const __grid_constant__ kdtree_compare_args args, CompareSums* partial) {
  __shared__ RowTable table;
  __shared__ CompareSums scratch[kCompareThreads];
  fill_table(args, table);

  const int64_t rows = table.before[args.batch];
  const int lane = threadIdx.x % 32;
  CompareSums sums = {};
  for (int64_t i = int64_t{blockIdx.x} * kCompareWarps + threadIdx.x / 32; i < rows * args.num_heads;
       i += int64_t{gridDim.x} * kCompareWarps) {
    const int64_t row = i / args.num_heads, head = i - row * args.num_heads;
    const int request = request_of(table, args.batch, row);
    const int64_t token = load_compared_rows(args, request).begin + (row - table.before[request]);
    const uint16_t* const stock =
        static_cast<const uint16_t*>(args.stock) + token * args.stock_stride_token + head * args.stock_stride_head;
    const uint16_t* const ours =
        static_cast<const uint16_t*>(args.ours) + token * args.ours_stride_token + head * args.ours_stride_head;
    for (int vector = lane; vector < KDTREE_V_DIM / kVector; vector += 32)
      add_vectors(sums, reinterpret_cast<const uint4*>(stock)[vector], reinterpret_cast<const uint4*>(ours)[vector]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    sums.rows = rows;
    sums.out_of_range = table.refused;
  }
  reduce(sums, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums;
}

extern "C" __global__ void __launch_bounds__(kCompareThreads)
    kdtree_compare_total(const __grid_constant__ kdtree_compare_args args, const CompareSums* partial, int count) {
  __shared__ CompareSums scratch[kCompareThreads];
  CompareSums sums = {};
  for (int i = threadIdx.x; i < count; i += kCompareThreads) add(sums, partial[i]);
  reduce(sums, scratch);
  if (threadIdx.x == 0) add_compare(args.record, args.mirror, sums, args.rel_l2_bound, args.max_abs_bound);
}

extern "C" __global__ void kdtree_count_one(uint64_t* counter, uint64_t* mirror) {
  publish(*counter, mirror, *counter + 1);
}

const Entry kCompareRows = {"kdtree_compare_rows", reinterpret_cast<const void*>(kdtree_compare_rows), kCompareThreads,
                            0};
const Entry kCompareTotal = {"kdtree_compare_total", reinterpret_cast<const void*>(kdtree_compare_total),
                             kCompareThreads, 0};
const Entry kCountOne = {"kdtree_count_one", reinterpret_cast<const void*>(kdtree_count_one), 1, 0};

uint64_t compare_workspace_bytes(int multiprocessors) {
  return uint64_t{kCompareCtasPerMultiprocessor} * multiprocessors * sizeof(CompareSums);
}

int launch_compare(const kdtree_compare_args& args, int multiprocessors) {
  kdtree_compare_args copy = args;
  CompareSums* partial = static_cast<CompareSums*>(args.workspace);
  int ctas = kCompareCtasPerMultiprocessor * multiprocessors;
  void* arguments[] = {&copy, &partial, &ctas};
  const int status = launch(kCompareRows, ctas, args.stream, arguments);
  return status == KDTREE_OK ? launch(kCompareTotal, 1, args.stream, arguments) : status;
}

int launch_count(uint64_t* counter, uint64_t* mirror, void* stream) {
  void* arguments[] = {&counter, &mirror};
  return launch(kCountOne, 1, stream, arguments);
}

}  // namespace kdtree

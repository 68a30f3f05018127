/* What is put into the stream beside attention and its comparison: a count, a time, a gate. */
#include "common/record.h"
#include "launch.h"
#include "ptx.cuh"

namespace kdtree {
namespace {

constexpr int kGateThreads = 256;

__device__ __forceinline__ void gate(const void* from, void* to, int32_t dtype, int i, bool open) {
  const int64_t index = open ? load_index(from, dtype, i) : 0;
  if (dtype == KDTREE_I64)
    static_cast<int64_t*>(to)[i] = index;
  else
    static_cast<int32_t*>(to)[i] = static_cast<int32_t>(index);
}

}  // namespace

extern "C" __global__ void kdtree_count_one(uint64_t* counter, uint64_t* mirror) {
  publish(*counter, mirror, *counter + 1);
}

extern "C" __global__ void kdtree_stamp_time(uint64_t* slot) { *slot = global_time(); }

extern "C" __global__ void __launch_bounds__(kGateThreads)
    kdtree_gate_indptrs(const __grid_constant__ kdtree_gate_args args) {
  const uint64_t before = *args.counter;
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) *args.counter = before + 1;
  const bool open = (before + args.phase) % args.every == 0;
  for (int i = threadIdx.x; i <= args.batch; i += kGateThreads) {
    gate(args.qo_indptr, args.gated_qo_indptr, args.qo_indptr_dtype, i, open);
    gate(args.kv_indptr, args.gated_kv_indptr, args.kv_indptr_dtype, i, open);
  }
}

const Entry kCountOne = {"kdtree_count_one", reinterpret_cast<const void*>(kdtree_count_one), 1, 0};
const Entry kStampTime = {"kdtree_stamp_time", reinterpret_cast<const void*>(kdtree_stamp_time), 1, 0};
const Entry kGateIndptrs = {"kdtree_gate_indptrs", reinterpret_cast<const void*>(kdtree_gate_indptrs), kGateThreads,
                            0};

int launch_count(uint64_t* counter, uint64_t* mirror, void* stream) {
  void* arguments[] = {&counter, &mirror};
  return launch(kCountOne, 1, stream, arguments);
}

int launch_stamp(uint64_t* slot, void* stream) {
  void* arguments[] = {&slot};
  return launch(kStampTime, 1, stream, arguments);
}

int launch_gate(const kdtree_gate_args& args) {
  kdtree_gate_args copy = args;
  void* arguments[] = {&copy};
  return launch(kGateIndptrs, 1, args.stream, arguments);
}

}  // namespace kdtree

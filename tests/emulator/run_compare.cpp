/* The sources of the kernels beside attention, and the functions that run them. Compiled with instrumentation: see
 * races.cpp. */
#include "ptx.h"

#include "compare_kernels.h"

#include "fill_box_kernel.h"

#include "stream_kernels.h"

extern "C" int kdtree_mutant;

namespace {

using kdtree::BoxCall;
using kdtree::BoxClaim;
using kdtree::CompareSums;

kdtree_compare_args arguments;
kdtree_gate_args gating;
BoxCall box;
CompareSums* partial;
BoxClaim* claim;
int row_ctas;
uint64_t* slot;

void rows() { kdtree::kdtree_compare_rows(arguments, partial); }
void total() { kdtree::kdtree_compare_total(arguments, box, partial, row_ctas, claim); }
void fill_box() { kdtree::kdtree_fill_box(arguments, box, claim); }
void gate() { kdtree::kdtree_gate_indptrs(gating); }
void stamp() { kdtree::kdtree_stamp_time(slot); }

void run(const char* kernel, void (*body)(), int ctas, int threads, int shared_bytes, uint64_t seed) {
  for (int i = 0; i < ctas; ++i)
    emulator::run({kernel, body, i, ctas, threads, shared_bytes, shared_bytes, 1}, seed);
}

}  // namespace

extern "C" {

/* A call on `ctas` CTAs of each kernel that has more than one. The workspace is the end of what the call gives. */
__attribute__((visibility("default"))) int kdtree_emulate_compare(const kdtree_compare_args* args, int ctas,
                                                                  uint64_t seed) {
  arguments = *args;
  row_ctas = ctas;
  const uint64_t need = ctas * sizeof(CompareSums) + sizeof(BoxClaim);
  if (arguments.workspace_bytes < need) return KDTREE_ERR_WORKSPACE;
  unsigned char* const end = static_cast<unsigned char*>(arguments.workspace) + arguments.workspace_bytes;
  claim = args->box != nullptr ? reinterpret_cast<BoxClaim*>(end - sizeof(BoxClaim)) : nullptr;
  partial = reinterpret_cast<CompareSums*>(end - need);
  box = args->box != nullptr ? kdtree::box_call(*args->box, args->ours_dtype) : BoxCall{};
  emulator::catch_segfaults();
  run("kdtree_compare_rows", rows, ctas, kdtree::kCompareThreads, sizeof(kdtree::RowsShared), seed);
  run("kdtree_compare_total", total, 1, kdtree::kCompareThreads, sizeof(kdtree::TotalShared), seed);
  if (claim != nullptr) run("kdtree_fill_box", fill_box, ctas, kdtree::kBoxThreads, 0, seed);
  return KDTREE_OK;
}

__attribute__((visibility("default"))) int kdtree_emulate_gate(const kdtree_gate_args* args, uint64_t seed) {
  gating = *args;
  emulator::catch_segfaults();
  run("kdtree_gate_indptrs", gate, 1, kdtree::kGateThreads, 0, seed);
  return KDTREE_OK;
}

__attribute__((visibility("default"))) int kdtree_emulate_stamp(uint64_t* to) {
  slot = to;
  run("kdtree_stamp_time", stamp, 1, 1, 0, 0);
  return KDTREE_OK;
}
}

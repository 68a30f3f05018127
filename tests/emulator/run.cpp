/* The kernels' own sources, and the one function that runs them. Compiled with instrumentation: see races.cpp. */
#include "ptx.h"

#include "attention.h"

namespace {

kdtree_verify_args arguments;
kdtree::Workspace workspace(nullptr, 0);
int attention_ctas;

void attend() { kdtree::kdtree_attend_m64n32(arguments, workspace); }
void attend_fp8() { kdtree::kdtree_attend_m64n32_fp8(arguments, workspace); }
void merge() { kdtree::kdtree_merge(arguments, workspace, attention_ctas); }

}  // namespace

extern "C" {

/* Which of the build's mutants (emulated.py) runs: 0 is none. */
__attribute__((visibility("default"))) int kdtree_mutant = 0;

/* A call on `ctas` multiprocessors; its threads' order is the seed's. The workspace is the end of what the call gives,
 * so that the caller can see what lies behind it. */
__attribute__((visibility("default"))) int kdtree_emulate(const kdtree_verify_args* args, int ctas, uint64_t seed) {
  using kdtree::Shared;
  arguments = *args;
  if (ctas < 1 || ctas > kdtree::kMaxCtas) return KDTREE_ERR_LIMIT;
  const uint64_t need = (kdtree::Workspace::bytes(ctas) + 15) / 16 * 16;
  if (arguments.workspace_bytes < need) return KDTREE_ERR_WORKSPACE;
  unsigned char* const end = static_cast<unsigned char*>(arguments.workspace) + arguments.workspace_bytes;
  workspace = kdtree::Workspace(end - need, ctas);
  attention_ctas = ctas;
  emulator::catch_segfaults();
  const bool bf16 = arguments.pool_dtype == KDTREE_BF16;
  for (int i = 0; i < ctas; ++i)
    emulator::run({bf16 ? "kdtree_attend_m64n32" : "kdtree_attend_m64n32_fp8", bf16 ? attend : attend_fp8, i, ctas,
                   kdtree::kThreads, Shared::kBytes, Shared::kVisible, Shared::kStageBytes},
                  seed);
  const int merging = kdtree::kMergeCtasPerMultiprocessor * ctas;
  constexpr int kMergeBytes = sizeof(kdtree::MergeShared);
  for (int i = 0; i < merging; ++i)
    emulator::run({"kdtree_merge", merge, i, merging, kdtree::kMergeThreads, kMergeBytes, kMergeBytes, 1}, seed);
  return KDTREE_OK;
}
}

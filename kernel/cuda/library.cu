/* The CUDA library's side of the C ABI: checks, then launches. Nothing here allocates, synchronizes or keeps state. */
#include "common/library.h"

#include <algorithm>
#include <iterator>

#include "common/checks.h"
#include "launch.h"

namespace kdtree {
namespace {

const char* const kVariantNames[] = {"m64n32"};
constexpr uint32_t kBf16 = 1u << KDTREE_BF16;
constexpr uint32_t kPoolDtypes = kBf16 | 1u << KDTREE_F8_E4M3 | 1u << KDTREE_F8_E5M2;
const Entry* const kEntries[] = {&kAttend,  &kAttendFp8, &kMerge,     &kCompareRows, &kCompareTotal,
                                 &kFillBox, &kCountOne,  &kStampTime, &kGateIndptrs};

uint64_t workspace_bytes(int multiprocessors) {
  return std::max(verify_workspace_bytes(multiprocessors), compare_workspace_bytes(multiprocessors));
}

/* Rows are read and written 16 bytes at a time. */
constexpr int kRowAlignment = 16;

}  // namespace

const Library library = {"cuda", KDTREE_ARCHS, kBf16, kPoolDtypes, kBf16, kRowAlignment, 1, kVariantNames};

}  // namespace kdtree

using namespace kdtree;

extern "C" {

int kdtree_supports_device(int device) {
  int multiprocessors;
  return supported_device(device, &multiprocessors);
}

int kdtree_workspace_size(const kdtree_workspace_args* args, uint64_t* bytes) {
  int multiprocessors, status;
  if ((status = check_workspace_args(args, bytes)) != KDTREE_OK) return status;
  if ((status = supported_device(args->device, &multiprocessors)) != KDTREE_OK) return status;
  *bytes = workspace_bytes(multiprocessors);
  return KDTREE_OK;
}

int kdtree_verify(const kdtree_verify_args* args) {
  int multiprocessors, status;
  if ((status = check_verify(args)) != KDTREE_OK) return status;
  if ((status = supported_device(args->device, &multiprocessors)) != KDTREE_OK) return status;
  status = check_workspace(args->workspace, args->workspace_bytes, verify_workspace_bytes(multiprocessors));
  if (status != KDTREE_OK) return status;
  const CurrentDevice current(args->device);
  return current.ok() ? launch_verify(*args, multiprocessors) : KDTREE_ERR_DEVICE;
}

int kdtree_compare(const kdtree_compare_args* args) {
  int multiprocessors, status;
  if ((status = check_compare(args)) != KDTREE_OK) return status;
  if ((status = supported_device(args->device, &multiprocessors)) != KDTREE_OK) return status;
  status = check_workspace(args->workspace, args->workspace_bytes, compare_workspace_bytes(multiprocessors));
  if (status != KDTREE_OK) return status;
  const CurrentDevice current(args->device);
  return current.ok() ? launch_compare(*args, multiprocessors) : KDTREE_ERR_DEVICE;
}

int kdtree_count(uint64_t* counter, uint64_t* mirror, int device, void* stream) {
  int multiprocessors, status;
  if (counter == nullptr) return KDTREE_ERR_NULL_POINTER;
  if ((status = supported_device(device, &multiprocessors)) != KDTREE_OK) return status;
  const CurrentDevice current(device);
  return current.ok() ? launch_count(counter, mirror, stream) : KDTREE_ERR_DEVICE;
}

int kdtree_stamp(uint64_t* slot, int device, void* stream) {
  int multiprocessors, status;
  if ((status = check_stamp(slot)) != KDTREE_OK) return status;
  if ((status = supported_device(device, &multiprocessors)) != KDTREE_OK) return status;
  const CurrentDevice current(device);
  return current.ok() ? launch_stamp(slot, stream) : KDTREE_ERR_DEVICE;
}

int kdtree_gate(const kdtree_gate_args* args) {
  int multiprocessors, status;
  if ((status = check_gate(args)) != KDTREE_OK) return status;
  if ((status = supported_device(args->device, &multiprocessors)) != KDTREE_OK) return status;
  const CurrentDevice current(args->device);
  return current.ok() ? launch_gate(*args) : KDTREE_ERR_DEVICE;
}

/* Not part of the ABI: what kernel `index` is launched with, for kernel/report.py. Returns 0 past the last. */
KDTREE_API int kdtree_cuda_entry(int index, const char** name, int* threads, int* dynamic_shared) {
  if (index < 0 || index >= static_cast<int>(std::size(kEntries))) return 0;
  *name = kEntries[index]->name;
  *threads = kEntries[index]->threads;
  *dynamic_shared = kEntries[index]->dynamic_shared;
  return 1;
}

}  // extern "C"

/* What the library's entry points need of the device, and of each other. */
#pragma once

#include <cuda_runtime.h>

#include "kdtree_verify.h"

namespace kdtree {

/* The multiprocessors of a device, or a status. Reads attributes only: it creates no context and is safe under capture.
 */
int supported_device(int device, int* multiprocessors);

/* Makes a device current for as long as it lives: launches go to the current one, whatever the stream. */
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device) error_ = cudaSetDevice(device);
    changed_ = error_ == cudaSuccess && previous_ != device;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(previous_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  bool ok() const { return error_ == cudaSuccess; }

 private:
  int previous_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

/* A kernel as it is launched. */
struct Entry {
  const char* name;
  const void* kernel;
  int threads;
  int dynamic_shared;
};

/* Launches a kernel; more dynamic shared memory than a block gets unasked is asked for each time, which costs nothing
 * beside a launch, is no stream operation, and leaves no state of ours to keep per device. kOverlapped: the kernel's
 * CTAs may come before the kernel in front of it in the stream has ended, and wait for it themselves (ptx.cuh). */
enum class Launch { kAfter, kOverlapped };
int launch(const Entry& entry, int ctas, void* stream, void** arguments, Launch when = Launch::kAfter);

/* kdtree_verify, for arguments that passed the checks. */
extern const Entry kAttend, kAttendFp8, kMerge;
uint64_t verify_workspace_bytes(int multiprocessors);
int launch_verify(const kdtree_verify_args& args, int multiprocessors);

/* The others likewise. */
extern const Entry kCompareRows, kCompareTotal, kFillBox, kCountOne, kStampTime, kGateIndptrs;
uint64_t compare_workspace_bytes(int multiprocessors);
int launch_compare(const kdtree_compare_args& args, int multiprocessors);
int launch_count(uint64_t* counter, uint64_t* mirror, void* stream);
int launch_stamp(uint64_t* slot, void* stream);
int launch_gate(const kdtree_gate_args& args);

}  // namespace kdtree

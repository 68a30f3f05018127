#include "launch.h"

#include <cstdlib>
#include <cstring>

#include "workspace.cuh"

namespace kdtree {
namespace {

constexpr int kUnaskedShared = 48 * 1024;

/* Whether KDTREE_ARCHS ("sm_120a,sm_90a") names this compute capability. Such code runs on no other: it has no PTX. */
bool built_for(int major, int minor) {
  for (const char* name = std::strstr(KDTREE_ARCHS, "sm_"); name != nullptr; name = std::strstr(name + 1, "sm_"))
    if (std::strtol(name + 3, nullptr, 10) == major * 10 + minor) return true;
  return false;
}

}  // namespace

int supported_device(int device, int* multiprocessors) {
  int devices = 0, major = 0, minor = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) {
    cudaGetLastError();  // not left behind for the next call
    return KDTREE_ERR_DEVICE;
  }
  if (device < 0 || device >= devices ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return KDTREE_ERR_DEVICE;
  if (*multiprocessors > kMaxCtas) *multiprocessors = kMaxCtas;
  return built_for(major, minor) ? KDTREE_OK : KDTREE_ERR_ARCH;
}

int launch(const Entry& entry, int ctas, void* stream, void** arguments, Launch when) {
  if (entry.dynamic_shared > kUnaskedShared &&
      cudaFuncSetAttribute(entry.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, entry.dynamic_shared) !=
          cudaSuccess) {
    cudaGetLastError();
    return KDTREE_ERR_LAUNCH;
  }
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(entry.threads);
  config.dynamicSmemBytes = entry.dynamic_shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = when == Launch::kOverlapped;
  const cudaError_t error = cudaLaunchKernelExC(&config, entry.kernel, arguments);
  if (error == cudaSuccess) return KDTREE_OK;
  cudaGetLastError();
  return KDTREE_ERR_LAUNCH;
}

}  // namespace kdtree

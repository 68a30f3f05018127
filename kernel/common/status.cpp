#include "kdtree_verify.h"

extern "C" {

uint32_t kdtree_abi_version(void) { return KDTREE_ABI_VERSION; }

const char* kdtree_status_string(int status) {
  switch (status) {
    case KDTREE_OK: return "ok";
    case KDTREE_ERR_STRUCT_SIZE: return "struct_size is not this ABI's";
    case KDTREE_ERR_NULL_POINTER: return "a required pointer is NULL";
    case KDTREE_ERR_DTYPE: return "a dtype this library does not take in that place";
    case KDTREE_ERR_LIMIT: return "a count is negative or above its limit";
    case KDTREE_ERR_STRIDE: return "a stride is smaller than the row it separates";
    case KDTREE_ERR_ALIGNMENT: return "a pointer or stride is not aligned as this library needs it";
    case KDTREE_ERR_WORKSPACE: return "the workspace is missing or too small";
    case KDTREE_ERR_DEVICE: return "not a device this library runs on";
    case KDTREE_ERR_ARCH: return "no machine code for this device's compute capability";
    case KDTREE_ERR_LAUNCH: return "the CUDA runtime refused the launch";
    case KDTREE_ERR_VALUE: return "a scale is not finite or too large, a bound is NaN, a variant does not exist, or a mask has no mask_indptr";
    default: return "unknown status";
  }
}

}  // extern "C"

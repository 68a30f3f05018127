/* The box on the device: what of a compared call is copied there, and who does it. */
#pragma once

#include "common/box.h"

namespace kdtree {

/* kdtree_box_args as kernels get it: the call is on the host otherwise. */
struct BoxCall {
  kdtree_verify_args call;
  kdtree_box_state* state;
  kdtree_box_header* memory;
  uint64_t memory_bytes, tag;
  RowBytes row_bytes;
};

inline BoxCall box_call(const kdtree_box_args& args, int32_t out_dtype) {
  return {*args.call, args.state, args.memory, args.memory_bytes, args.tag, row_bytes(*args.call, out_dtype)};
}

/* `claim` lies in the workspace, from `total` to the fill of the same call. */
int launch_fill_box(kdtree_compare_args& args, BoxCall& box, BoxClaim* claim);

}  // namespace kdtree

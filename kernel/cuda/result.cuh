/* What groups and merge both do with a finished row. */
#pragma once

#include "kdtree_verify.h"
#include "scores.cuh"

namespace kdtree {

/* 1/x; 0 for the denominator of a row that saw no key (kNothingSeen). */
__device__ __forceinline__ float reciprocal(float x) { return x == 0.f && signbit(x) ? 0.f : reciprocal_fast(x); }

/* Where row `row` of a request's (token, head) rows lies in `out`. */
__device__ __forceinline__ uint16_t* result_row(const kdtree_verify_args& args, int64_t first_token, int row) {
  const int token = row / args.num_heads, head = row - token * args.num_heads;
  return static_cast<uint16_t*>(args.out) + (first_token + token) * args.out_stride_token + head * args.out_stride_head;
}

}  // namespace kdtree

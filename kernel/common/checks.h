// Checks of everything about a call that the host can see. They read the argument struct only, never what
// its pointers lead to. The device itself (ordinal, stream, architecture) is each library's own to check.
#ifndef KDTREE_COMMON_CHECKS_H
#define KDTREE_COMMON_CHECKS_H

#include <cstdint>

#include "kdtree_verify.h"

namespace kdtree {

// A limit on every count, so that sums and products of counts stay far from 2^63.
constexpr int64_t kMaxCount = int64_t{1} << 40;

// Each returns KDTREE_OK or the first error found. A dimension of size 1 may have any stride, and an array
// of no elements any address, NULL too: torch gives both.
int check_verify(const kdtree_verify_args* args);
int check_compare(const kdtree_compare_args* args);
int check_gate(const kdtree_gate_args* args);
int check_stamp(const uint64_t* slot);
int check_workspace_args(const kdtree_workspace_args* args, const uint64_t* bytes);
int check_workspace(const void* workspace, uint64_t bytes, uint64_t needed);

}  // namespace kdtree

#endif  // KDTREE_COMMON_CHECKS_H

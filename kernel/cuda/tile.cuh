/* Geometry of one row tile, its warps and its shared memory. Every number that the kernel's shape hangs on is here. */
#pragma once

#include <stdint.h>

#include "kdtree_verify.h"

namespace kdtree {

constexpr int kRows = 64;  // query rows (token x head) of a tile
constexpr int kKeys = 32;  // keys of a block, and of a stage

/* Warps 0 .. 3 load; warps 4 .. 7 and 8 .. 11 are two groups that compute 32 rows of the tile each. */
constexpr int kGroups = 2;
constexpr int kGroupRows = kRows / kGroups;
constexpr int kGroupWarps = 4;
constexpr int kGroupThreads = 32 * kGroupWarps;
constexpr int kLoaderThreads = 128;
constexpr int kComputeThreads = kGroups * kGroupThreads;
constexpr int kThreads = kLoaderThreads + kComputeThreads;
constexpr int kWarps = kThreads / 32;

/* 64K registers of a multiprocessor, as setmaxnreg deals them out anew: computing takes what loading does not need. */
constexpr int kLoaderRegisters = 24;
constexpr int kComputeRegisters = 240;
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of a thread, before
static_assert(kLoaderRegisters * kLoaderThreads + kComputeRegisters * kComputeThreads <= kLaunchRegisters * kThreads);

/* S = Q K^T: a warp holds its group's 32 rows by 144 of the 576 columns of Q, in registers. */
constexpr int kSliceDim = KDTREE_QK_DIM / kGroupWarps;
constexpr int kSliceSteps = kSliceDim / 16;
static_assert(kSliceSteps * 16 == kSliceDim);

/* Softmax: warp w of a group owns its rows 8w .. 8w+7. */
constexpr int kOwnedRows = kGroupRows / kGroupWarps;
static_assert(kOwnedRows == 8, "one mma row octet");

/* O = P V: warp w of a group holds its 32 rows by columns 128w .. 128w+127 of O, in registers. */
constexpr int kWarpCols = KDTREE_V_DIM / kGroupWarps;

/* A key's row in shared memory: padded by 16 bytes, so that the eight rows of an 8x8 matrix lie in different banks. */
constexpr int kKeyPitch = KDTREE_QK_DIM * 2 + 16;
/* A row of P likewise. */
constexpr int kProbPitch = kKeys * 2 + 16;

/* Partial scores that one warp hands to another: 8 rows x 32 keys of float32, 8 bytes of a lane at a time. */
constexpr int kMessageBytes = kOwnedRows * kKeys * 4;
constexpr int kOutboxBytes = (kGroupWarps - 1) * kMessageBytes;

/* Byte offsets in dynamic shared memory. */
struct Shared {
  static constexpr int kStageBytes = kKeys * kKeyPitch;
  static constexpr int kStages = 0;                 // two stages of keys, or of draft values
  static constexpr int kOutboxes = 2 * kStageBytes;  // [group][warp] messages, and P in their place
  static constexpr int kRowFactor = kOutboxes + kGroups * kGroupWarps * kOutboxBytes;  // [row] float: rescales O
  static constexpr int kQueryScale = kRowFactor + kRows * 4;  // [row] float: scales S where Q is float16
  static constexpr int kVisible = kQueryScale + kRows * 4;       // [compute thread] byte: draft keys that its row sees
  static constexpr int kStageBits = kVisible + kComputeThreads;  // [stage] 32 bits, see loader.cuh
  static constexpr int kBarriers = kStageBits + 8;               // [signal][number % 2] mbarrier, see barriers.cuh
  static constexpr int kSignals = 5;
  static constexpr int kSegment = kBarriers + kSignals * 16 + 8;  // [number % 2]
  static constexpr int kSegmentBytes = 96;
  static constexpr int kPlan = kSegment + 2 * kSegmentBytes;
  static constexpr int kPlanBytes = 112;
  static constexpr int kBytes = kPlan + kPlanBytes;
};
static_assert(Shared::kBytes <= 101376, "a block of sm_120 gets no more");
static_assert(Shared::kSegment % 16 == 0 && Shared::kPlan % 16 == 0);

}  // namespace kdtree

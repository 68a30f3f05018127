/* Geometry of one row tile and its shared memory. Every number that the kernel's shape hangs on is here. */
#pragma once

#include <stdint.h>

#include "kdtree_verify.h"

namespace kdtree {

constexpr int kRows = 64;  // query rows (token x head) of a tile
constexpr int kKeys = 32;  // keys of a block
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

/* S = Q K^T: warp (group, slice) holds 32 rows by 144 of the 576 columns of Q, in registers. */
constexpr int kRowGroups = 2;
constexpr int kSlices = 4;
constexpr int kSliceDim = KDTREE_QK_DIM / kSlices;
constexpr int kSliceSteps = kSliceDim / 16;
static_assert(kRowGroups * kSlices == kWarps && kSliceSteps * 16 == kSliceDim);

/* Softmax: warp w owns rows 8w .. 8w+7. */
constexpr int kOwnedRows = kRows / kWarps;
static_assert(kOwnedRows == 8, "one mma row octet");

/* O = P V: warp w holds all rows by 64 of the 512 columns of O, in registers. */
constexpr int kWarpCols = KDTREE_V_DIM / kWarps;

/* A key's row in shared memory: padded by 16 bytes, so that the eight rows of an 8x8 matrix lie in different banks. */
constexpr int kKeyPitch = KDTREE_QK_DIM * 2 + 16;
/* A row of P likewise. */
constexpr int kProbPitch = kKeys * 2 + 16;

/* Partial scores that one warp hands to another: 8 rows x 32 keys of float32, two 16-byte vectors a lane. */
constexpr int kMessageBytes = kOwnedRows * kKeys * 4;
constexpr int kInboxBytes = (kSlices - 1) * kMessageBytes;
static_assert(kOwnedRows * kProbPitch <= kInboxBytes, "P takes the place of the messages it was made from");

/* Byte offsets in dynamic shared memory. */
struct Shared {
  static constexpr int kStageBytes = kKeys * kKeyPitch;
  static constexpr int kStages = 0;                               // two stages of keys, or of draft values
  static constexpr int kInboxes = 2 * kStageBytes;                // [warp] messages, then the warp's 8 rows of P
  static constexpr int kAlpha = kInboxes + kWarps * kInboxBytes;  // [row] float: factor that O is rescaled by
  static constexpr int kMax = kAlpha + kRows * 4;                 // [row] float: maximum so far, in base 2
  static constexpr int kSum = kMax + kRows * 4;                   // [row] float: denominator so far
  static constexpr int kValid = kSum + kRows * 4;                 // [stage][warp] byte: which of its 4 keys exist
  static constexpr int kVisible = kValid + 2 * kWarps;            // [thread] byte: which of its 8 keys its row sees
  static constexpr int kSlots = kVisible + kThreads;              // [stage][key] 8 bytes: slots of the next prefix keys
  static constexpr int kSegment = kSlots + 2 * kKeys * 8;
  static constexpr int kSegmentBytes = 128;
  static constexpr int kPlan = kSegment + kSegmentBytes;
  static constexpr int kPlanBytes = 128;
  static constexpr int kBytes = kPlan + kPlanBytes;
};
static_assert(Shared::kBytes <= 101376, "a block of sm_120 gets no more");
static_assert(Shared::kSegment % 16 == 0 && Shared::kPlan % 16 == 0);

}  // namespace kdtree

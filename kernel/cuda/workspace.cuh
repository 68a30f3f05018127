/* The workspace: what the attention kernel leaves for the merge kernel. Nobody clears it: every launch writes the
 * reports of all its CTAs, and a partial tile is read only where a report says that it was written.
 */
#pragma once

#include "ptx.cuh"
#include "tile.cuh"

namespace kdtree {

/* Part of a tile's result, over some of its keys.
 *
 * `out` is the sum over keys of 2^(s - max) V in float16, scaled by a power of two for each row and compute warp, so
 * that its largest element is from 2^14 to 2^15: half the bytes of float32, and its 11 bits are lost in the
 * bf16 of the result. Columns lie as the warps hold them: thread i of a quad has 8n + 2i and the next of its
 * warp's 128 columns, n = 0 .. 15; it stores those of n = 4j .. 4j+3 side by side, and beside those of i + 1. */
struct PartialTile {
  uint16_t out[kRows][KDTREE_V_DIM];
  float scale[kRows][kGroupWarps];  // out times this is the sum
  float2 stats[kRows];              // max, in base 2, -inf where a row saw no key; the denominator's part
};
static_assert(sizeof(PartialTile) % 16 == 0);

/* The column of the first of two neighbours in PartialTile::out. */
__device__ __forceinline__ int partial_column(int position) {
  const int warp = position / kWarpCols, j = position % kWarpCols / 32, i = position % 32 / 8, pair = position % 8 / 2;
  return warp * kWarpCols + (4 * j + pair) * 8 + i * 2;
}

/* What each CTA says of itself: the unfinished tile that began in it, and what it counted. Zeros at first. */
struct CtaReport {
  int64_t token;      // first query token of the tile's request
  int32_t rows;       // of the tile; 0: no tile began here and was left unfinished
  int32_t parts;      // this CTA's tail, then the fronts of the CTAs after it
  int32_t first_row;  // of the tile, in the request's (token, head) rows
  int32_t pad_;
  uint64_t refused;     // slots out of range; CTA 0: windows and masks too
  uint64_t query_rows;  // CTA 0: of the whole call
};

struct Workspace {
  PartialTile* tiles;  // [ctas][2]: front, tail
  CtaReport* reports;  // [ctas]

  __host__ __device__ Workspace(void* base, int ctas)
      : tiles(static_cast<PartialTile*>(base)), reports(reinterpret_cast<CtaReport*>(tiles + 2 * ctas)) {}
  __device__ PartialTile& front(int cta) const { return tiles[2 * cta]; }
  __device__ PartialTile& tail(int cta) const { return tiles[2 * cta + 1]; }
  static uint64_t bytes(int ctas) { return ctas * (2 * sizeof(PartialTile) + sizeof(CtaReport)); }
};

/* This CTA's report; where it lies is found anew at each call, the step loops have no register for it. */
__device__ __forceinline__ CtaReport& report_of(const Workspace& workspace) {
  return workspace.reports[anew(blockIdx.x)];
}

/* Attention CTAs of a launch: one for each multiprocessor, as many as a row may have parts in the merge kernel. */
constexpr int kMaxCtas = 256;

}  // namespace kdtree

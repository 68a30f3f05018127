/* The workspace: what the attention kernel leaves for the merge kernel. Nobody clears it: every launch writes the
 * reports of all its CTAs, and a partial tile is read only where a report says that it was written.
 */
#pragma once

#include "tile.cuh"

namespace kdtree {

/* Part of a tile's result, over some of its keys: sum over keys of 2^(s - max) V, and the denominator's part. */
struct PartialTile {
  float out[kRows][KDTREE_V_DIM];
  float max[kRows];  // in base 2; -inf where a row saw no key
  float sum[kRows];
};

/* What each CTA says of itself: the unfinished tile that began in it, and what it counted. */
struct CtaReport {
  int64_t token;      // first query token of the tile's request
  int32_t first_row;  // of the tile, in the request's (token, head) rows
  int32_t rows;       // of the tile; 0: no tile began here and was left unfinished
  int32_t parts;      // this CTA's tail, then the fronts of the CTAs after it
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

/* Attention CTAs of a launch: one for each multiprocessor, as many as one block of the merge kernel can scan. */
constexpr int kMaxCtas = 512;

}  // namespace kdtree

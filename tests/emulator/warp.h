/* What the lanes of a warp do together. None of it gives order between their accesses to memory, but for sync_warp. */
#pragma once

#include <string.h>

#include "emulator.h"

namespace emulator {

enum Collective : int {
  kSyncwarp,
  kShuffle,
  kVote,
  kReduce,
  kElect,
  kMatrices,
  kMatricesTransposed,
  kMultiply,
  kBarrier  // from here on, two for each named barrier
};

struct Warp {
  int collective, arrived;
  uint64_t given[32], got[32];  // by each lane
  int parameter[32];
  void* pointer[32];
};

Warp& warp();  // of the thread that runs
inline int lane() { return self() % 32; }

/* True in the lane that comes last, which then does the work and releases the others; they wait for that. */
bool arrive(Collective collective);
void release();

template <typename Work>
inline void together(Collective collective, Work work) {
  if (!arrive(collective)) return;
  work();
  release();
}

void sync_warp();

/* Lane i gets what lane source(i, parameter of i) gave. */
template <typename T, typename Source>
inline T shuffle(T value, int parameter, Source source) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  Warp& w = warp();
  w.given[lane()] = 0;
  memcpy(&w.given[lane()], &value, sizeof value);
  w.parameter[lane()] = parameter;
  together(kShuffle, [&] {
    for (int i = 0; i < 32; ++i) w.got[i] = w.given[source(i, w.parameter[i]) & 31];
  });
  memcpy(&value, &w.got[lane()], sizeof value);
  return value;
}

/* A bit for each lane. */
uint32_t vote(bool value);
uint32_t sum(uint32_t value);
/* True in one lane, whichever. */
bool elect();

/* matrix.cpp: ldmatrix and mma, of 16-bit numbers. */
void load_matrices(uint32_t (&registers)[4], const unsigned char* row, bool transposed);
/* What 16 bits are as a number. */
using Value = float(uint32_t bits);
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value& value);

}  // namespace emulator

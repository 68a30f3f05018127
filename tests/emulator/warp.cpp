/* Warps: lanes that wait for each other. */
#include "warp.h"

#include "clocks.h"

namespace emulator {
namespace {

Warp warps[kMaxWarps];

}  // namespace

Warp& warp() { return warps[self() / 32]; }

bool arrive(Collective collective) {
  Warp& w = warp();
  if (w.arrived == 0) w.collective = collective;
  if (w.collective != collective)
    fail("warp %d has diverged: lane %d is at collective %d, others at %d", self() / 32, lane(), collective,
         w.collective);
  if (++w.arrived == 32) return true;
  block("collective", collective);
  return false;
}

void release() {
  warp().arrived = 0;
  const int first = self() - lane();
  for (int i = 0; i < 32; ++i)
    if (first + i != self()) wake(first + i);
}

void sync_warp() {
  together(kSyncwarp, [] {
    const int first = self() - lane();
    Knowledge all = known[first];
    for (int i = 1; i < 32; ++i) all.join(known[first + i]);
    for (int i = 0; i < 32; ++i) known[first + i] = all;
    for (int i = 0; i < 32; ++i) tick(first + i);
  });
}

uint32_t vote(bool value) {
  Warp& w = warp();
  w.given[lane()] = value;
  together(kVote, [&] {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(w.given[i]) << i;
    for (uint64_t& got : w.got) got = bits;
  });
  return static_cast<uint32_t>(w.got[lane()]);
}

uint32_t sum(uint32_t value) {
  Warp& w = warp();
  w.given[lane()] = value;
  together(kReduce, [&] {
    uint32_t total = 0;
    for (const uint64_t given : w.given) total += static_cast<uint32_t>(given);
    for (uint64_t& got : w.got) got = total;
  });
  return static_cast<uint32_t>(w.got[lane()]);
}

bool elect() {
  Warp& w = warp();
  together(kElect, [&] {
    const int one = static_cast<int>(random() % 32);
    for (int i = 0; i < 32; ++i) w.got[i] = i == one;
  });
  return w.got[lane()] != 0;
}

}  // namespace emulator

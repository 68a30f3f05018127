/* Vector clocks: what has happened before what. For the runtime only; the kernel's sources see emulator.h. */
#pragma once

#include "emulator.h"

namespace emulator {

/* Copies have clocks of their own: one for each warp that starts some and each of the two stages that they go to. */
constexpr int kCopyingWarps = 4;
constexpr int kActors = kMaxThreads + kCopyingWarps * 2;

/* Signed, since that is what every x86-64 compares eight or four at a time. */
using Clock = int32_t;

struct alignas(64) Clocks {
  Clock of[(kActors + 15) / 16 * 16];

  void join(const Clocks& other) {
    for (size_t i = 0; i < sizeof of / sizeof *of; ++i) of[i] = of[i] < other.of[i] ? other.of[i] : of[i];
  }
  /* Whether something in it comes neither before nor at `other`. */
  bool beyond(const Clocks& other) const {
    Clock any = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; ++i) any |= other.of[i] - of[i];  // negative where ours is later
    return any < 0;
  }
};

/* What an actor knows to have happened, and which of it bulk copies know, too, because of proxy fences. */
struct Knowledge {
  Clocks seen, fenced;

  void join(const Knowledge& other) {
    seen.join(other.seen);
    fenced.join(other.fenced);
  }
};

extern Knowledge known[kActors];

/* What an actor does from now on is not what it has told others of. */
inline void tick(int actor) { ++known[actor].seen.of[actor]; }

/* Of each CTA anew. */
void reset_races(const Cta& cta);
void reset_barriers();
void reset_copies();

/* races.cpp: a bulk copy's writes, at its start; and that nothing else has written there when it lands. */
void check_copy(int actor, int offset, int bytes);
void check_still_of_copy(int actor, Clock clock, int offset, int bytes);

/* barriers.cpp: the phase that an mbarrier is in; a copy brings its bytes and what was known when it began. */
int phase_of(uint32_t barrier);
void bring(uint32_t barrier, uint32_t bytes, const Knowledge& knowledge);
void check_nobody_is_left();

/* copies.cpp: one of the copies under way lands; false where there is none. */
bool copies_under_way();
void land_one();

}  // namespace emulator

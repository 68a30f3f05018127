/* Bulk copies: they land when it is their turn, not when they are started. */
#include <string.h>

#include <vector>

#include "clocks.h"

namespace emulator {
namespace {

struct Copy {
  int offset;
  uint32_t bytes, barrier;
  const void* from;
  int actor;
  Clock clock;
  Knowledge knowledge;  // whoever waits for it knows what was known at its start, and that it has written
  int phase;
};
std::vector<Copy> copies;

}  // namespace

void reset_copies() { copies.clear(); }

void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("a copy is not aligned: to %u, from %p, %u bytes", to, from, bytes);
  maybe_switch();
  const int stage_bytes = current_cta().stage_bytes, offset = static_cast<int>(to) - kSharedAddress;
  if (offset < 0 || offset + static_cast<int>(bytes) > 2 * stage_bytes) fail("a copy to shared+%d: no stage", offset);
  if (self() / 32 >= kCopyingWarps) fail("a copy by warp %d", self() / 32);
  const int actor = kMaxThreads + self() / 32 * 2 + offset / stage_bytes;
  known[actor].seen.join(known[self()].seen);
  tick(actor);

  Copy copy = {offset, bytes, barrier, from, actor, known[actor].seen.of[actor], known[self()], phase_of(barrier)};
  copy.knowledge.seen.of[actor] = copy.knowledge.fenced.of[actor] = copy.clock;
  check_copy(actor, offset, static_cast<int>(bytes));
  memset(shared_memory() + offset, 0xff, bytes);  // NaN, until it has come
  tick(self());
  copies.push_back(copy);
}

bool copies_under_way() { return !copies.empty(); }

void land_one() {
  const size_t i = random() % copies.size();
  const Copy copy = copies[i];
  copies[i] = copies.back();
  copies.pop_back();
  check_still_of_copy(copy.actor, copy.clock, copy.offset, static_cast<int>(copy.bytes));
  memcpy(shared_memory() + copy.offset, copy.from, copy.bytes);
  bring(copy.barrier, copy.bytes, copy.knowledge);
}

void proxy_fence() { known[self()].fenced.join(known[self()].seen); }

}  // namespace emulator

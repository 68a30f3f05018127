/* Named barriers and mbarriers: what was known to those who arrive is known to those who are let through. */
#include <stdint.h>

#include <map>
#include <vector>

#include "clocks.h"
#include "warp.h"

namespace emulator {
namespace {

struct NamedBarrier {
  int expected = 0, arrived = 0;
  bool any = false;
  Knowledge told = {};
  std::vector<int> waiting;
};
NamedBarrier named[16];
bool results[kMaxThreads];  // what a thread's barrier told it

struct Mbarrier {
  int arrivals = 0, pending = 0, phase = 0;
  int last_waited = -1;               // the last phase that somebody has waited for
  int64_t bytes = 0;                  // that copies still have to bring
  Knowledge told = {}, complete = {};  // in this phase so far; in the one before it
  std::vector<int> waiting;
};
std::map<int, Mbarrier> mbarriers;  // by offset in shared memory

int offset_of(uint32_t address) {
  if (address % 8 != 0) fail("an mbarrier is not aligned");
  return static_cast<int>(address) - kSharedAddress;
}

/* The mbarrier at an address, for one who knows that it is initialized: who does not is in a race. */
Mbarrier& mbarrier(uint32_t address) {
  const int offset = offset_of(address);
  const auto found = mbarriers.find(offset);
  if (found == mbarriers.end()) fail("the mbarrier at shared+%d is not initialized", offset);
  read_by(self(), shared_memory() + offset, 8);
  maybe_switch();
  return found->second;
}

void complete_phases(Mbarrier& barrier, int offset) {
  while (barrier.pending == 0 && barrier.bytes == 0) {
    if (barrier.last_waited < barrier.phase - 1)  // compute-sanitizer's synccheck reports it, too
      fail("unwaited phase %d of the mbarrier at shared+%d goes by", barrier.phase - 1, offset);
    if (!barrier.waiting.empty()) barrier.last_waited = barrier.phase;
    barrier.complete = barrier.told;
    barrier.told = {};
    ++barrier.phase;
    barrier.pending = barrier.arrivals;
    for (const int thread : barrier.waiting) wake(thread);
    barrier.waiting.clear();
  }
}

void let_through(NamedBarrier& barrier) {
  for (const int thread : barrier.waiting) {
    known[thread].join(barrier.told);
    results[thread] = barrier.any;
    if (thread != self()) wake(thread);
  }
  barrier = {};
}

}  // namespace

void reset_barriers() {
  for (NamedBarrier& barrier : named) barrier = {};
  mbarriers.clear();
}

bool named_barrier(int id, int threads, bool waits, bool any) {
  together(static_cast<Collective>(kBarrier + id * 2 + waits), [] {});  // bar is .aligned: a warp comes as one
  NamedBarrier& barrier = named[id];
  if (barrier.arrived == 0) barrier.expected = threads;
  if (barrier.expected != threads) fail("named barrier %d: for %d and for %d threads", id, barrier.expected, threads);
  barrier.told.join(known[self()]);
  tick(self());
  barrier.any |= any;
  if (waits) barrier.waiting.push_back(self());
  if (++barrier.arrived == threads)
    let_through(barrier);
  else if (waits)
    block("named barrier", id);
  return waits && results[self()];
}

void check_nobody_is_left() {
  for (int id = 0; id < 16; ++id)
    if (named[id].arrived > 0) fail("%d arrivals are left over at named barrier %d", named[id].arrived, id);
}

void mbarrier_init(uint32_t address, int arrivals) {
  const int offset = offset_of(address);
  access(shared_memory() + offset, 8, true);
  Mbarrier& barrier = mbarriers[offset] = {};
  barrier.arrivals = barrier.pending = arrivals;
}

void mbarrier_expect(uint32_t address, uint32_t bytes, int phase) {
  Mbarrier& barrier = mbarrier(address);
  if (barrier.phase != phase)
    fail("the mbarrier at shared+%d is told to expect bytes in phase %d, and is in %d", offset_of(address), phase,
         barrier.phase);
  barrier.bytes += bytes;
  if (barrier.bytes >= 1 << 20) fail("the mbarrier at shared+%d: more bytes than it counts", offset_of(address));
}

void mbarrier_arrive(uint32_t address, int phase) {
  Mbarrier& barrier = mbarrier(address);
  if (barrier.phase != phase)
    fail("the mbarrier at shared+%d is told of phase %d, and is in %d", offset_of(address), phase, barrier.phase);
  if (barrier.pending == 0) fail("the mbarrier at shared+%d is told once too often", offset_of(address));
  barrier.told.join(known[self()]);
  tick(self());
  --barrier.pending;
  complete_phases(barrier, offset_of(address));
}

void mbarrier_wait(uint32_t address, uint32_t parity, int phase) {
  Mbarrier& barrier = mbarrier(address);
  if (static_cast<uint32_t>(phase % 2) != parity) fail("phase %d has not parity %u", phase, parity);
  while (static_cast<uint32_t>(barrier.phase % 2) == parity) {
    if (barrier.phase != phase)
      fail("phase %d of the mbarrier at shared+%d is waited for in phase %d", phase, offset_of(address),
           barrier.phase);
    barrier.waiting.push_back(self());
    block("mbarrier", offset_of(address));
  }
  if (barrier.phase != phase + 1)
    fail("phase %d of the mbarrier at shared+%d is waited for in phase %d", phase, offset_of(address), barrier.phase);
  barrier.last_waited = phase;
  known[self()].join(barrier.complete);
}

int phase_of(uint32_t address) { return mbarrier(address).phase; }

void bring(uint32_t address, uint32_t bytes, const Knowledge& knowledge) {
  Mbarrier& barrier = mbarriers.at(offset_of(address));
  barrier.told.join(knowledge);
  barrier.bytes -= bytes;
  complete_phases(barrier, offset_of(address));
}

}  // namespace emulator

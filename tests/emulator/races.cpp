/* Shared memory: who accessed what, and whether there was an order. Compiled without instrumentation: the hooks that
 * the compiler puts before the kernel's loads and stores (-fsanitize=thread) end here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "clocks.h"

namespace emulator {

Knowledge known[kActors];

namespace {

/* The last write to some bytes, and the reads since the clocks began. */
struct Cell {
  int writer = -1;
  Clock clock = 0;
  bool by_copy = false;
  bool atomics = false;  // reads among the readers are atomic additions
};

unsigned char* memory;
std::vector<Cell> cells;
std::vector<Clocks> readers;
int shared_bytes, single_bytes_from;

/* Four bytes are a cell, single ones where the CTA says so. */
int cell_of(int offset) {
  return offset < single_bytes_from ? offset / 4 : single_bytes_from / 4 + (offset - single_bytes_from);
}

std::string name(int actor) {
  char text[48];
  if (actor < kMaxThreads)
    snprintf(text, sizeof text, "warp %d lane %d", actor / 32, actor % 32);
  else
    snprintf(text, sizeof text, "a copy by warp %d to stage %d", (actor - kMaxThreads) / 2, (actor - kMaxThreads) % 2);
  return text;
}

bool unordered(const Cell& cell, int actor, const Clocks& seen) {
  return cell.writer >= 0 && cell.writer != actor && cell.clock > seen.of[cell.writer];
}

/* A reader, other than `actor`, that `seen` does not know of; -1 if there is none. */
int unseen_reader(const Clocks& reads, const Clocks& seen, int actor) {
  if (!reads.beyond(seen)) return -1;
  for (int i = 0; i < kActors; ++i)
    if (i != actor && reads.of[i] > seen.of[i]) return i;
  return -1;
}

void check_read(int index, int thread, int offset) {
  const Cell& cell = cells[index];
  const Clocks& seen = known[thread].seen;
  if (unordered(cell, thread, seen))
    fail("race: %s reads shared+%d, not after the write by %s", name(thread).c_str(), offset,
         name(cell.writer).c_str());
  if (cell.atomics) {
    const int other = unseen_reader(readers[index], seen, thread);
    if (other >= 0)
      fail("race: %s reads shared+%d, not after the atomic by %s", name(thread).c_str(), offset, name(other).c_str());
  }
  readers[index].of[thread] = seen.of[thread];
}

/* `actor` is who writes from now on, with what `thread` knows: itself, or a copy that it starts. */
void check_write(int index, int thread, int actor, int offset) {
  Cell& cell = cells[index];
  const Knowledge& knows = known[thread];
  const bool by_copy = actor != thread;
  if (cell.writer != actor && unordered(cell, thread, knows.seen))
    fail("race: %s writes shared+%d, not after the write by %s", name(actor).c_str(), offset,
         name(cell.writer).c_str());
  const int reader = unseen_reader(readers[index], knows.seen, thread);
  if (reader >= 0)
    fail("race: %s writes shared+%d, which %s may still read", name(actor).c_str(), offset, name(reader).c_str());
  if (by_copy && cell.writer >= 0 && !cell.by_copy && cell.clock > knows.fenced.of[cell.writer])
    fail("no proxy fence: %s writes shared+%d over an ordinary store by %s", name(actor).c_str(), offset,
         name(cell.writer).c_str());
  cell = {actor, known[actor].seen.of[actor], by_copy, false};
}

/* The offset of shared memory that is accessed; -1 where p lies elsewhere. */
int offset_of(const void* p, size_t bytes) {
  const size_t offset = static_cast<const unsigned char*>(p) - memory;
  if (offset >= kMaxShared) return -1;
  if (offset + bytes > static_cast<size_t>(shared_bytes)) fail("access past shared memory, at shared+%zu", offset);
  return static_cast<int>(offset);
}

}  // namespace

unsigned char* shared_memory() {
  if (memory == nullptr) memory = static_cast<unsigned char*>(aligned_alloc(kSharedAddress, kMaxShared));
  return memory;
}

void reset_races(const Cta& cta) {
  memset(shared_memory(), 0xff, kMaxShared);  // nobody has initialized it
  shared_bytes = cta.shared_bytes;
  single_bytes_from = cta.single_bytes_from;
  cells.assign(cell_of(shared_bytes) + 1, Cell{});
  readers.assign(cells.size(), Clocks{});
  memset(known, 0, sizeof known);
  for (int actor = 0; actor < kActors; ++actor) tick(actor);
}

void access(const void* p, size_t bytes, bool write) {
  if (self() < 0) return;
  const int offset = offset_of(p, bytes);
  if (offset < 0) return;
  maybe_switch();
  if (!write) return read_by(self(), p, bytes);
  for (int i = cell_of(offset); i <= cell_of(offset + static_cast<int>(bytes) - 1); ++i)
    check_write(i, self(), self(), offset);
}

void read_by(int thread, const void* p, size_t bytes) {
  const int offset = offset_of(p, bytes);
  for (int i = cell_of(offset); i <= cell_of(offset + static_cast<int>(bytes) - 1); ++i)
    check_read(i, thread, offset);
}

void atomic_access(const void* p, size_t bytes) {
  const int offset = offset_of(p, bytes);
  if (offset < 0) return;
  for (int i = cell_of(offset); i <= cell_of(offset + static_cast<int>(bytes) - 1); ++i) {
    if (unordered(cells[i], self(), known[self()].seen))
      fail("race: an atomic by %s at shared+%d, not after the write by %s", name(self()).c_str(), offset,
           name(cells[i].writer).c_str());
    readers[i].of[self()] = known[self()].seen.of[self()];
    cells[i].atomics = true;
  }
}

void check_copy(int actor, int offset, int bytes) {
  for (int at = offset; at < offset + bytes; at += 4) check_write(cell_of(at), self(), actor, at);
}

void check_still_of_copy(int actor, Clock clock, int offset, int bytes) {
  for (int at = offset; at < offset + bytes; at += 4)
    if (cells[cell_of(at)].writer != actor || cells[cell_of(at)].clock != clock)
      fail("shared+%d was written while %s was on its way", at, name(actor).c_str());
}

}  // namespace emulator

extern "C" {
#define KDTREE_HOOKS(bytes)                                                               \
  void __tsan_read##bytes(void* p) { emulator::access(p, bytes, false); }                 \
  void __tsan_write##bytes(void* p) { emulator::access(p, bytes, true); }                 \
  void __tsan_unaligned_read##bytes(void* p) { emulator::access(p, bytes, false); }       \
  void __tsan_unaligned_write##bytes(void* p) { emulator::access(p, bytes, true); }
KDTREE_HOOKS(1)
KDTREE_HOOKS(2)
KDTREE_HOOKS(4)
KDTREE_HOOKS(8)
KDTREE_HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) { emulator::access(p, bytes, false); }
void __tsan_write_range(void* p, size_t bytes) { emulator::access(p, bytes, true); }
void __tsan_init() {}
}

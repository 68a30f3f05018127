/* Runs the CUDA kernels' own sources on a CPU, to find races, deadlocks and wrong results where there is no GPU.
 *
 * Each CUDA thread of a CTA is a fiber; which one runs next is drawn from a seed, and a switch may come at each access
 * to shared memory. CTAs run one after the other, the attention kernel's and then the merge kernel's.
 *
 * Modelled:
 *   - order: every thread has a vector clock, every byte of shared memory (four bytes together where the kernel has
 *     nothing smaller) knows who wrote it last and who read it since. Two accesses without an order between them, one
 *     of them a write, are a race, whether they came out right or not;
 *   - bulk copies: they land late, in any order, and hold garbage until then; they must not overwrite ordinary stores
 *     that no proxy fence has put before them;
 *   - mbarriers with the number of their phase: who tells or waits names the one it means, and none goes by unwaited;
 *   - warps: who comes to a collective while its warp is at another one has diverged;
 *   - alignment, the bounds of shared memory, and threads that wait forever.
 * Not modelled: hardware, ptxas and its registers, bank conflicts, time; that a grid overlaps the one before it
 * (programmatic dependent launch); that loads by way of the read-only cache (ld.global.nc) may miss stores; races in
 * global memory. Approximate instructions are exact here.
 *
 * Only __syncwarp, named barriers and mbarriers give order. Shuffles, votes, elect, ldmatrix and mma bring a warp
 * together and give none: what one lane wrote before a shuffle, another lane does not see after it.
 *
 * A failed check prints one line and ends the process.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace emulator {

constexpr int kMaxThreads = 384;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kSharedAddress = 1024;  // of shared memory's first byte; 0 is no address
constexpr int kMaxShared = 104 << 10;

/* How the process ends after a failed check. */
enum Exit { kBroken = 3, kDeadlock = 4, kSegfault = 5 };

/* One CTA and what it may do with its shared memory. */
struct Cta {
  const char* kernel;
  void (*body)();
  int number, grid;
  int threads;
  int shared_bytes;
  int single_bytes_from;  // from here on neighbouring bytes belong to different threads
  int stage_bytes;        // bulk copies go to two stages of so many bytes, the first things in shared memory
};

/* fibers.cpp */
void run(const Cta& cta, uint64_t seed);
const Cta& current_cta();
int self();         // the thread that runs
uint32_t random();  // of the seed
void maybe_switch();
void block(const char* reason, int detail);  // until somebody wakes this thread
void wake(int thread);
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
void catch_segfaults();

/* races.cpp */
unsigned char* shared_memory();
void access(const void* p, size_t bytes, bool write);  // by this thread; memory that is not shared counts for nothing
void read_by(int thread, const void* p, size_t bytes);
void atomic_access(const void* p, size_t bytes);

/* barriers.cpp */
bool named_barrier(int id, int threads, bool waits, bool any = false);  // whether `any` was true in a thread
void mbarrier_init(uint32_t address, int arrivals);
void mbarrier_expect(uint32_t address, uint32_t bytes, int phase);
void mbarrier_arrive(uint32_t address, int phase);
void mbarrier_wait(uint32_t address, uint32_t parity, int phase);

/* copies.cpp */
void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);
void proxy_fence();

}  // namespace emulator

/* Fibers: one for each CUDA thread, on one CPU thread. Which runs next, and when a copy lands, is drawn from the seed.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "clocks.h"

#ifndef __x86_64__
#error "the switch from one fiber to another is written for x86-64"
#endif

/* The registers that a call must keep go to the stack, the stack pointer to *save; then back from another stack. */
extern "C" void kdtree_switch_stack(void** save, void* to);
asm(R"(
.text
.globl kdtree_switch_stack
.hidden kdtree_switch_stack
.type kdtree_switch_stack, @function
kdtree_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int kSavedRegisters = 6;

enum class State { kReady, kBlocked, kDone };
struct Fiber {
  char* stack = nullptr;
  void* stack_pointer = nullptr;
  State state = State::kDone;
  int place = 0;  // in `ready`
  const char* reason = "";
  int detail = 0;
};
Fiber fibers[kMaxThreads];
std::vector<int> ready;
void* scheduler_stack;
int current = -1;
Cta cta;
uint64_t seed, random_state;

/* How this CTA's threads are ordered: each seed draws other habits, since no single one finds everything. */
struct Habits {
  uint32_t switch_chance;    // of 65536, at an access
  uint32_t land_one_in;      // a copy lands after one of so many switches; 0: when nothing else can run
  uint32_t reorder_one_in;   // a warp gets another priority after one of so many; 0: no priorities
  uint32_t priority[kMaxWarps];
} habits;

void draw_habits() {
  const uint32_t reorder[] = {0, 300, 3000, 20000};
  habits.reorder_one_in = reorder[random() % 4];
  habits.switch_chance = random() % 3 == 0 ? 0 : random() % 2 != 0 ? 200 : 2000;
  habits.land_one_in = random() % 3 == 0 ? 0 : 1 + random() % 400;
  for (uint32_t& priority : habits.priority) priority = random() % 1000;
}

int choose() {
  int chosen = ready[random() % ready.size()];
  if (habits.reorder_one_in == 0) return chosen;
  if (random() % habits.reorder_one_in == 0) habits.priority[random() % kMaxWarps] = random() % 1000;
  for (int tries = 0; tries < 6; ++tries) {
    const int other = ready[random() % ready.size()];
    if (habits.priority[other / 32] > habits.priority[chosen / 32]) chosen = other;
  }
  return chosen;
}

void switch_to_scheduler() { kdtree_switch_stack(&fibers[current].stack_pointer, scheduler_stack); }

void take_off(int thread) {
  const int place = fibers[thread].place, last = ready.back();
  ready[place] = last;
  fibers[last].place = place;
  ready.pop_back();
}

void enter() {
  cta.body();
  fibers[current].state = State::kDone;
  take_off(current);
  switch_to_scheduler();
  abort();
}

/* A stack that returns to enter(). */
void prepare(Fiber& fiber) {
  if (fiber.stack == nullptr) {
    void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) abort();
    fiber.stack = static_cast<char*>(stack);
  }
  void** top = reinterpret_cast<void**>(fiber.stack + kStackBytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(enter);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
  fiber.state = State::kBlocked;
}

[[noreturn]] void end(Exit code, const std::string& text) {
  fflush(stdout);
  fprintf(stderr, "emulator: %s [%s, CTA %d of %d, seed %llu]\n", text.c_str(), cta.kernel, cta.number, cta.grid,
          static_cast<unsigned long long>(seed));
  fflush(stderr);
  _exit(code);
}

/* Threads that wait for nobody. */
void check_all_done() {
  std::string text, last;
  int waiting = 0;
  for (int t = 0; t < cta.threads; ++t) {
    if (fibers[t].state == State::kDone) continue;
    ++waiting;
    const std::string at = std::string(" ") + fibers[t].reason + " " + std::to_string(fibers[t].detail);
    if (at != last) text += "; from warp " + std::to_string(t / 32) + " lane " + std::to_string(t % 32) + " on:" + at;
    last = at;
  }
  if (waiting > 0) end(kDeadlock, "deadlock: " + std::to_string(waiting) + " threads wait" + text);
}

void on_segfault(int, siginfo_t* info, void*) {
  if (current < 0) {  // not the kernel's: as if nobody had caught it
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  char text[96];
  snprintf(text, sizeof text, "segfault: warp %d lane %d accesses %p, outside the call's arrays", current / 32,
           current % 32, info->si_addr);
  end(kSegfault, text);
}

}  // namespace

int self() { return current; }
const Cta& current_cta() { return cta; }

uint32_t random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<uint32_t>(random_state >> 20);
}

void maybe_switch() {
  if (habits.switch_chance > 0 && current >= 0 && (random() & 0xffff) < habits.switch_chance) switch_to_scheduler();
}

void wake(int thread) {
  if (fibers[thread].state == State::kReady) return;
  fibers[thread].state = State::kReady;
  fibers[thread].place = static_cast<int>(ready.size());
  ready.push_back(thread);
}

void block(const char* reason, int detail) {
  Fiber& fiber = fibers[current];
  fiber.state = State::kBlocked, fiber.reason = reason, fiber.detail = detail;
  take_off(current);
  switch_to_scheduler();
}

void fail(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  end(kBroken, text);
}

void catch_segfaults() {
  struct sigaction action = {};
  action.sa_sigaction = on_segfault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

void run(const Cta& next, uint64_t of_seed) {
  cta = next, seed = of_seed;
  random_state = (seed + 1) * 0x9E3779B97F4A7C15ull + 0x1234567 + static_cast<uint64_t>(cta.number);
  for (int i = 0; i < 5; ++i) random();
  draw_habits();
  reset_races(cta);
  reset_barriers();
  reset_copies();
  ready.clear();
  for (int t = 0; t < cta.threads; ++t) prepare(fibers[t]), wake(t);
  while (!ready.empty() || copies_under_way()) {
    const bool lands = habits.land_one_in > 0 && random() % habits.land_one_in == 0;
    if (copies_under_way() && (lands || ready.empty())) {
      land_one();
    } else {
      current = choose();
      kdtree_switch_stack(&scheduler_stack, fibers[current].stack_pointer);
      current = -1;
    }
  }
  check_all_done();
  check_nobody_is_left();
}

}  // namespace emulator

// The threads of one call: started for it, joined by it.
#ifndef KDTREE_HOST_WORKERS_H
#define KDTREE_HOST_WORKERS_H

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>

namespace kdtree {

constexpr int kMaxWorkers = 64;

// The most threads a call can have in this process; it stays the same, so that it may size a workspace.
inline int worker_limit() {
  return static_cast<int>(std::clamp<long>(sysconf(_SC_NPROCESSORS_CONF), 1, kMaxWorkers));
}

// The processors the calling thread may run on now: a server binds its ranks to theirs.
inline int processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return worker_limit();
  return std::clamp(CPU_COUNT(&set), 1, worker_limit());
}

// Runs work(0) .. work(workers - 1) at the same time, the first on the calling thread. Where a thread cannot
// be started its call is left out: the calls must share their work out among those that run.
template <typename Work>
void run_workers(int workers, const Work& work) {
  std::thread threads[kMaxWorkers];
  int started = 1;
  try {
    for (; started < workers; ++started) threads[started] = std::thread([&work, started] { work(started); });
  } catch (const std::exception&) {  // no more threads, or no memory for one
  }
  work(0);
  for (int i = 1; i < started; ++i) threads[i].join();
}

}  // namespace kdtree

#endif  // KDTREE_HOST_WORKERS_H

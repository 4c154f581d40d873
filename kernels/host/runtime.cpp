// The runtime library, first part: who runs the units of a launch, and on how many CPU threads.
// Compiled once by minidl/cuda/cpu.py together with fibre.cpp, then loaded beside every kernel.
//
//     units  0 1 2 3 | 4 5 ....... n      The first few run at once, timed. If the rest would take less than a thread costs
//            timed   | rest               to wake, it runs here too; else a small pool shares it, chunk by chunk.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <time.h>

#include "parallel.h"
#include "runtime.h"

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;

static char error_text[2048];
static std::mutex error_mutex;

MINIDL_EXPORT const char* minidl_error() { return error_text; }

MINIDL_EXPORT int minidl_refuse(const char* sentence) {
  std::lock_guard<std::mutex> lock(error_mutex);
  snprintf(error_text, sizeof error_text, "%s", sentence);
  return 1;
}

namespace {

const double kWakeCostSeconds = 40e-6;  // a sleeping thread needs 10-50 us until it runs

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// One job at a time; its chunks are claimed from a counter. Never destroyed: its threads outlive main().
struct Pool {
  std::mutex mutex, in_use;
  std::condition_variable wake, done;
  int n_workers = 0, working = 0, wanted = 0;
  unsigned long long generation = 0;
  const MinidlWork* work = nullptr;
  std::atomic<long long> next{0};
  long long end = 0, chunk = 1;

  void drain() {
    for (;;) {
      long long a = next.fetch_add(chunk);
      if (a >= end) return;
      (*work)(a, a + chunk < end ? a + chunk : end);
    }
  }

  void worker() {
    unsigned long long seen = 0;
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return generation != seen && wanted > 0; });
      seen = generation;
      wanted--;
      working++;
      lock.unlock();
      drain();
      lock.lock();
      if (--working == 0) done.notify_all();
    }
  }

  void run(const MinidlWork& job, long long begin, long long stop, int threads) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      while (n_workers < threads - 1) {
        std::thread([this] { worker(); }).detach();
        n_workers++;
      }
      work = &job;
      next = begin;
      end = stop;
      chunk = (stop - begin) / (threads * 8);
      if (chunk < 1) chunk = 1;
      wanted = threads - 1;
      generation++;
    }
    wake.notify_all();
    drain();
    std::unique_lock<std::mutex> lock(mutex);
    wanted = 0;  // a worker that comes late finds nothing to do, and no job
    done.wait(lock, [&] { return working == 0; });
  }
};

Pool* pool = new Pool;

struct AfterFork {  // a child process has none of the threads: it starts with a new pool
  AfterFork() { pthread_atfork(nullptr, nullptr, [] { pool = new Pool; }); }
} after_fork;

}  // namespace

void minidl_parallel(const MinidlWork& work, long long n, int threads) {
  if (n <= 1 || threads <= 1) return work(0, n);
  long long first = n / 32 > 0 ? n / 32 : 1;
  double start = now();
  work(0, first);
  double rest_seconds = (now() - start) / first * (n - first);
  // A pool in use (two Python threads launching at once) is no reason to wait: run here.
  if (rest_seconds > kWakeCostSeconds && pool->in_use.try_lock()) {
    pool->run(work, first, n, threads);
    pool->in_use.unlock();
  } else {
    work(first, n);
  }
}

MINIDL_EXPORT int minidl_run_flat(const MinidlLaunch* launch, MinidlUnits units, long long n_units) {
  MinidlWork work = {[](const void* context, long long a, long long b) {
                       auto* p = (const void* const*)context;
                       ((MinidlUnits)p[0])((const MinidlLaunch*)p[1], a, b);
                     },
                     nullptr};
  const void* context[2] = {(const void*)units, launch};
  work.context = context;
  minidl_parallel(work, n_units, launch->threads);
  return 0;
}

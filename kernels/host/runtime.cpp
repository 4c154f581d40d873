// The runtime library, first part: runs the units of a launch on one or several CPU threads.
// minidl/cuda/host/cpu.py compiles it once, with fibre.cpp. Every kernel uses it.
//
//     units  0 1 2 3 | 4 5 ....... n      This thread runs and times the first few units. If the
//            timed   | rest               rest takes less time than waking a thread, this thread
//                                         runs the rest, too. If not, a small pool of threads takes
//                                         the rest in chunks.
//
// A thread without work first looks for work in a loop (it spins), then it sleeps. It spins for the
// time that Python needs between two launches of a training step. Waking a sleeping thread takes 10
// to 50 us. Inside a plan a thread spins for at most a millisecond. If the ranks of this machine
// want more threads than it has processors, a thread does not spin, but sleeps at once.
//
// A thread that waits for the last chunks spins for the time of a wake-up, and then sleeps. So it
// loses at most twice the time of the better choice, spinning or sleeping (Karlin et al. 1990).
//
// This file uses POSIX threads and not the C++ library. The compiler may be zig, from a Python
// wheel, which has no C++ library that is ready for use.
#include "runtime.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "parallel.h"

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;
__thread unsigned minidl_launch_number;

static char error_text[2048];
static pthread_mutex_t error_mutex = PTHREAD_MUTEX_INITIALIZER;

MINIDL_EXPORT const char* minidl_error() { return error_text; }

MINIDL_EXPORT int minidl_refuse(const char* sentence) {
  pthread_mutex_lock(&error_mutex);
  snprintf(error_text, sizeof error_text, "%s", sentence);
  pthread_mutex_unlock(&error_mutex);
  return 1;
}

static const double kWakeCostSeconds = 40e-6;  // a sleeping thread begins after 10 to 50 us
static const double kMeetCostSeconds = 8e-6;   // a spinning thread begins at once
static const double kLookSeconds = 400e-6;     // Python usually takes less between two launches
static const double kHeldSeconds = 1e-3;       // the longest time to spin, in a launch or a plan

// The size of a thread's stack, as on Linux. The default of macOS is only 512 KiB, which is too
// small for the local arrays of a flat kernel.
static const size_t kWorkerStackBytes = 8 << 20;

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// Returns the number of processors that this process may use, divided by the number of ranks on
// this machine.
static int own_processors() {
  long n = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
  const char *open_mpi = getenv("OMPI_COMM_WORLD_LOCAL_SIZE"), *mpich = getenv("MPI_LOCALNRANKS");
  int ranks = open_mpi ? atoi(open_mpi) : mpich ? atoi(mpich) : 1;
  return (int)(n / (ranks > 1 ? ranks : 1));
}

// Spins for at most `seconds`, until the word is 0 (if until_zero is true) or is not 0. Returns
// true if the word has this value. After the time of a wake-up the thread also yields in each round
// of the loop. So another thread that waits for this processor, such as a thread of BLAS, can run
// first.
static bool spin(const int* word, bool until_zero, double seconds) {
  const double start = now();
  for (double t = start; t < start + seconds; t = now()) {
    if (t - start > kWakeCostSeconds) sched_yield();
    for (int i = 0; i < 16; ++i) {
      if ((__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) == until_zero) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
  }
  return false;
}

// A pool of threads. It runs one job at a time. The threads take chunks of the job from a counter.
// The pool is never freed, because its threads run until the process ends.
struct Pool {
  pthread_mutex_t mutex, in_use;
  pthread_cond_t wake, done;
  int n_workers, working, wanted;
  int processors, spinning;  // spinning: workers that look for work
  bool may_spin;
  int held;           // the number of running launches and plans
  pthread_t* thread;  // the workers' threads
  int apart_from;     // the workers do not use this processor; -1: none
  const MinidlWork* work;
  long long next, end, chunk;
  int failed;  // 1: a part of the work had to be stopped
};

static Pool* new_pool() {
  Pool* pool = (Pool*)calloc(1, sizeof(Pool));
  pool->processors = own_processors();
  pool->apart_from = -1;
  pthread_mutex_init(&pool->mutex, nullptr);
  pthread_mutex_init(&pool->in_use, nullptr);
  pthread_cond_init(&pool->wake, nullptr);
  pthread_cond_init(&pool->done, nullptr);
  return pool;
}

static Pool* pool;

static bool run(const MinidlWork& work, long long begin, long long end) {
  return minidl_guarded(work.body, work.context, begin, end);
}

static void drain(Pool* p) {
  for (;;) {
    long long a = __atomic_fetch_add(&p->next, p->chunk, __ATOMIC_RELAXED);
    if (a >= p->end) return;
    if (!run(*p->work, a, a + p->chunk < p->end ? a + p->chunk : p->end)) {
      __atomic_store_n(&p->failed, 1, __ATOMIC_RELAXED);
      __atomic_store_n(&p->next, p->end, __ATOMIC_RELAXED);  // the remaining chunks do not run
      return;
    }
  }
}

static void* worker(void* argument) {
  Pool* p = (Pool*)argument;
  pthread_mutex_lock(&p->mutex);
  for (;;) {
    if (p->wanted == 0 && p->may_spin) {
      p->spinning++;
      pthread_mutex_unlock(&p->mutex);
      for (double end = now() + kHeldSeconds;
           !spin(&p->wanted, false, kLookSeconds) &&
           __atomic_load_n(&p->held, __ATOMIC_RELAXED) && now() < end;) {}
      pthread_mutex_lock(&p->mutex);
      p->spinning--;
    }
    if (p->wanted == 0) pthread_cond_wait(&p->wake, &p->mutex);
    if (p->wanted == 0) continue;  // woken without work: a plan begins, and its work will follow
    p->wanted--;
    p->working++;
    pthread_mutex_unlock(&p->mutex);
    drain(p);
    pthread_mutex_lock(&p->mutex);
    if (--p->working == 0) pthread_cond_signal(&p->done);
  }
}

// Keeps the workers away from the processor of the thread that hands out the work. Without this,
// Linux may run both threads on one processor, and move one of them only milliseconds later.
static void keep_apart(Pool* p) {
#ifdef __linux__
  cpu_set_t set;
  int here = sched_getcpu();
  if (here == p->apart_from || sched_getaffinity(0, sizeof set, &set)) return;
  CPU_CLR(here, &set);
  if (CPU_COUNT(&set) == 0) return;
  for (int i = 0; i < p->n_workers; ++i) pthread_setaffinity_np(p->thread[i], sizeof set, &set);
  p->apart_from = here;
#endif
}

static void start_workers(Pool* p, int threads) {
  pthread_attr_t options;
  pthread_attr_init(&options);
  pthread_attr_setstacksize(&options, kWorkerStackBytes);
  if (p->n_workers < threads - 1) {
    p->thread = (pthread_t*)realloc(p->thread, (threads - 1) * sizeof(pthread_t));
    p->apart_from = -1;
  }
  // if no more threads can be made, the existing ones do the work
  while (p->n_workers < threads - 1 &&
         pthread_create(&p->thread[p->n_workers], &options, worker, p) == 0)
    pthread_detach(p->thread[p->n_workers++]);
  pthread_attr_destroy(&options);
  if ((p->may_spin = threads <= p->processors)) keep_apart(p);
}

static bool share(Pool* p, const MinidlWork& work, long long begin, long long end, int threads) {
  pthread_mutex_lock(&p->mutex);
  start_workers(p, threads);
  p->held++;
  p->work = &work;
  p->failed = 0;
  p->next = begin;
  p->end = end;
  p->chunk = (end - begin) / (threads * 32) > 1 ? (end - begin) / (threads * 32) : 1;
  p->wanted = threads - 1 < p->n_workers ? threads - 1 : p->n_workers;
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->mutex);
  drain(p);
  pthread_mutex_lock(&p->mutex);
  p->wanted = 0;  // a worker that wakes late finds no job
  if (p->working && p->may_spin) {
    pthread_mutex_unlock(&p->mutex);
    spin(&p->working, true, kWakeCostSeconds);
    pthread_mutex_lock(&p->mutex);
  }
  while (p->working) pthread_cond_wait(&p->done, &p->mutex);
  p->held--;
  bool good = !p->failed;
  pthread_mutex_unlock(&p->mutex);
  return good;
}

// After a fork, the child process has none of the pool's threads. So it starts with a new pool.
static void after_fork() { pool = new_pool(); }
__attribute__((constructor)) static void start() {
  pool = new_pool();
  pthread_atfork(nullptr, nullptr, after_fork);
}

// Runs the units in parts, so that the watchdog sees progress in a launch that takes minutes.
static bool run_here(const MinidlWork& work, long long begin, long long end) {
  if (end - begin < 256) return run(work, begin, end);
  for (int part = 0; part < 16; ++part) {
    long long n = end - begin;
    if (!run(work, begin + n * part / 16, begin + n * (part + 1) / 16)) return false;
  }
  return true;
}

// Returns the place where the time of one unit in a kernel's last launch is stored. The value 0
// means that there was no launch yet. Two kernels may have the same place. Then the time may be
// wrong for one of them, and its launch runs on too many or too few threads.
static double* seconds_of_unit(const void* kernel) {
  static double seconds[1024];
  return &seconds[(unsigned long long)kernel / 16 % 1024];
}

bool minidl_parallel(const MinidlWork& work, long long n, int threads, const void* kernel) {
  if (n <= 1 || threads <= 1) return run_here(work, 0, n);
  double unknown = 0, *unit = kernel ? seconds_of_unit(kernel) : &unknown;
  double start = now();
  long long first = 0;
  if (*unit < 10 * kWakeCostSeconds) {  // if not, all threads begin at once
    first = n / 256 > 0 ? n / 256 : 1;
    if (!run(work, 0, first)) return false;
    *unit = (now() - start) / first;
  }
  bool awake = __atomic_load_n(&pool->spinning, __ATOMIC_RELAXED) > 0;
  double cost = awake ? kMeetCostSeconds : kWakeCostSeconds;
  // If another Python thread uses the pool, this thread does not wait for it, but runs the work
  // itself.
  bool good;
  if (*unit * (n - first) > cost && pthread_mutex_trylock(&pool->in_use) == 0) {
    good = share(pool, work, first, n, threads);
    pthread_mutex_unlock(&pool->in_use);
    if (first == 0) *unit = (now() - start) * (threads < n ? threads : n) / n;
  } else {
    good = run_here(work, first, n);
    if (first == 0) *unit = (now() - start) / n;
  }
  return good;
}

struct FlatJob {
  const MinidlLaunch* launch;
  MinidlUnits units;
};

static void run_units(const void* context, long long begin, long long end) {
  const FlatJob* job = (const FlatJob*)context;
  job->units(job->launch, begin, end);
}

MINIDL_EXPORT int minidl_run_flat(const MinidlLaunch* launch, MinidlUnits units,
                                  long long n_units) {
  FlatJob job = {launch, units};
  return !minidl_parallel(MinidlWork{run_units, &job}, n_units, launch->threads,
                          (const void*)units);
}

void minidl_hold(int threads) {
  if (threads <= 1) return;
  pthread_mutex_lock(&pool->mutex);
  start_workers(pool, threads);
  pool->held++;
  if (pool->may_spin) pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
}

void minidl_release(int threads) {
  if (threads <= 1) return;
  pthread_mutex_lock(&pool->mutex);
  pool->held--;
  pthread_mutex_unlock(&pool->mutex);
}

// The runtime library, second part. It runs CUDA threads that wait for each other as fibres on one
// CPU thread.
//
//     thread 0  ----+            +---   Each thread of a block has its own stack. One thread runs
//     thread 1      +----+       |      until it reaches a barrier or a warp call. Then another
//     thread 2           +----+  |      thread runs. At a barrier the last thread that arrives
//     barrier  ---------------+--+      releases all threads. At a shuffle it gives each thread its
//                                       value. If no thread can run, this is a deadlock, and the
//                                       message tells where each thread waits.
//
// Within a block only one thread runs at a time, so every run gives the same results. Blocks may
// run on several CPU threads of the pool (runtime.cpp).
// Test: tests/cuda/host/test_fibre.py
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "guard.h"
#include "parallel.h"
#include "runtime.h"

extern "C" void minidl_switch(void** save, void* load);

namespace {

const int kMaxThreads = 1024;  // CUDA's limit for a block
// The address range of a thread's stack has kStackBytes. Only pages that are used take memory. CUDA
// gives a thread at most 512 KiB of local memory. The rest of the stack is for values that do not
// fit in registers, and for the calls of this library.
const size_t kGuardBytes = 64 * 1024;  // pages without access, at the low end of each stack
const size_t kStackBytes = (512 + 64) * 1024 + kGuardBytes;
const size_t kDynamicBytes = 256 * 1024;  // more than any GPU gives a block: 227 KiB
const long long kSpinLimit = 4000000;     // more yields without progress are a deadlock

enum State : char { READY, AT_BARRIER, IN_WARP, RETURNED, AT_TILE };

struct Fibre {
  void* stack_pointer;
  State state;
  uint3 thread;
  int line;  // the line where it waits or has returned
  const char* file;
  int value;  // the count of its last barrier
  bool by_return;  // true: the thread ended at a `return`, not at the kernel's last line
  // The arguments of the warp call in which this thread waits:
  int op, n_bytes, source;
  unsigned mask;
  const void* given;
  void* result;
};

// Bytes next to a __shared__ variable, or next to dynamic shared memory. A kernel must not change
// these bytes. name: null for dynamic shared memory.
struct Guard {
  const char *bytes, *name, *side;
};
const int kMaxGuards = 192;  // most guards in a launch. Further variables have none
char pattern[MINIDL_GUARD_BYTES];  // the bytes of every guard

struct Engine {
  Fibre fibres[kMaxThreads];
  unsigned waiting[kMaxThreads / 32], returned_lanes[kMaxThreads / 32];
  int order[kMaxThreads], n, cursor, arrived, n_returned, votes;
  int n_gone;  // threads of warps whose 32 lanes have all returned
  int in_tile[32];  // threads that wait. Tile k of n threads: number 1024 / n + k, as in a tree
  bool failed;
  int n_guarded;  // how many stacks have a guard page
  long long spins;
  void* main_stack_pointer;
  const MinidlLaunch* launch;
  MinidlThread run;
  uint3 block;
  char *stacks, *dynamic;
  Guard guards[kMaxGuards];
  int n_guards;
};

// one engine for each CPU thread that has run fibres
__attribute__((tls_model("initial-exec"))) __thread Engine* engine;
__thread const MinidlObserver* observer;  // set while the check form runs

Fibre& current() { return engine->fibres[engine->order[engine->cursor]]; }
int index_of(const Fibre& f) { return int(&f - engine->fibres); }

const char* short_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

void to_main() {
  void* unused;
  minidl_switch(&unused, engine->main_stack_pointer);
  __builtin_unreachable();
}

// Ends the launch from inside a CUDA thread. The other threads of the block never run again.
[[noreturn]] void fail(const char* format, ...) {
  char text[1500];
  va_list values;
  va_start(values, format);
  int n = snprintf(text, sizeof text, "block (%u, %u, %u): ", engine->block.x, engine->block.y,
                   engine->block.z);
  vsnprintf(text + n, sizeof text - n, format, values);
  va_end(values);
  minidl_refuse(text);
  engine->failed = true;
  to_main();
  __builtin_unreachable();
}

// Writes, for example, "16 threads wait at line 11, 48 returned at line 9". Threads with the same
// state and place are one group. The groups are ordered by their first thread.
void describe(char* text, size_t size) {
  static const char* const many[] = {"are ready after", "wait at", "wait in a warp call at",
                                     "returned at", "wait in a tile at"};
  static const char* const one[] = {"is ready after", "waits at", "waits in a warp call at",
                                    "returned at", "waits in a tile at"};
  Engine* e = engine;
  bool told[kMaxThreads] = {};
  size_t used = 0;
  for (int i = 0; i < e->n; ++i) {
    if (told[i]) continue;
    Fibre& f = e->fibres[i];
    int count = 0;
    for (int k = i; k < e->n; ++k) {
      Fibre& g = e->fibres[k];
      if (g.state == f.state && g.line == f.line && g.file == f.file) told[k] = true, count++;
    }
    char place[300] = "the end of the kernel";
    if (f.line) snprintf(place, sizeof place, "line %d of %s", f.line, short_name(f.file));
    if (used < size)
      used += snprintf(text + used, size - used, "%s%d thread%s %s %s", used ? ", " : "", count,
                       count == 1 ? "" : "s", (count == 1 ? one : many)[f.state], place);
  }
}

[[noreturn]] void fail_stuck() {
  char text[1200];
  bool warp = false, tile = false;
  for (int i = 0; i < engine->n; ++i) {
    warp |= engine->fibres[i].state == IN_WARP;
    tile |= engine->fibres[i].state == AT_TILE;
  }
  describe(text, sizeof text);
  if (tile) fail("deadlock: %s. Every thread of a tile must reach its sync().", text);
  if (!warp)
    fail("divergent barrier: %s. Every thread of a block must reach the same __syncthreads().",
         text);
  for (int i = 0; i < engine->n; ++i) {
    Fibre& f = engine->fibres[i];
    if (f.state != IN_WARP) continue;
    unsigned missing = f.mask & ~engine->waiting[i / 32] & ~engine->returned_lanes[i / 32];
    fail("deadlock: %s. Lane %d of warp %d waits with mask 0x%08x%s; lanes 0x%08x of it have not "
         "come.",
         text, i % 32, i / 32, f.mask, missing ? "" : " and the others with another mask", missing);
  }
  __builtin_unreachable();
}

// Switches to the next thread that can run, in the launch's order.
void yield() {
  Engine* e = engine;
  Fibre& from = current();
  for (int step = 1; step <= e->n; ++step) {
    int at = e->cursor + step;
    if (at >= e->n) at -= e->n;
    Fibre& to = e->fibres[e->order[at]];
    if (to.state != READY) continue;
    if (&to == &from) return;
    e->cursor = at;
    threadIdx = to.thread;
    minidl_switch(&from.stack_pointer, to.stack_pointer);
    return;
  }
  if (e->n_returned == e->n) to_main();
  fail_stuck();
}

void release_barrier() {
  Engine* e = engine;
  Fibre* first = e->fibres;
  while (first->state != AT_BARRIER) ++first;
  for (int i = 0; i < e->n; ++i) {
    Fibre& f = e->fibres[i];
    if (f.state == RETURNED) continue;
    if (f.state != AT_BARRIER || f.line != first->line || f.file != first->file) fail_stuck();
  }
  for (int i = 0; i < e->n; ++i) {
    Fibre& f = e->fibres[i];
    if (f.state == RETURNED) continue;
    f.state = READY;
    f.value = f.op == MINIDL_BARRIER_AND  ? e->votes == e->arrived
              : f.op == MINIDL_BARRIER_OR ? e->votes > 0
                                          : e->votes;
  }
  e->arrived = e->votes = 0;
  e->spins = 0;
  if (observer) observer->barrier();
}

// Called if the source lane of a shuffle does not take part in the shuffle. In a plain launch this
// is an error. The check form returns a value, and finds out whether a result depends on it.
void odd_shuffle(const Fibre& g, int lane, int warp) {
  char text[400];
  snprintf(text, sizeof text, "line %d of %s: lane %d of warp %d reads from lane %d, which %s.",
           g.line, short_name(g.file), lane, warp, g.source,
           !(g.mask >> g.source & 1)               ? "the mask does not name"
           : warp * 32 + g.source >= engine->n     ? "does not exist: the block ends before it"
                                                   : "has returned");
  if (!observer) fail("%s", text);
  observer->odd_shuffle(text, g.result, g.n_bytes);
}

// If every lane that fibre `f` waits for has reached the same warp call, gives these lanes their
// results and lets them run.
bool complete_warp_call(Fibre& f) {
  Engine* e = engine;
  int warp = index_of(f) / 32;
  Fibre* lanes = e->fibres + warp * 32;
  unsigned members = f.mask & ~e->returned_lanes[warp];
  if ((e->waiting[warp] & members) != members) return false;
  for (unsigned m = members; m; m &= m - 1)
    // returns if one of the lanes waits in another warp call
    if (lanes[__builtin_ctz(m)].mask != f.mask) return false;
  unsigned ballot = 0;
  for (unsigned m = members; m; m &= m - 1) {
    Fibre& g = lanes[__builtin_ctz(m)];
    if (g.op != f.op || g.line != f.line || g.file != f.file)
      fail("divergent warp call: lane %d is at line %d of %s, lane %d at line %d of %s, "
           "both with mask 0x%08x.",
           index_of(f) % 32, f.line, short_name(f.file), __builtin_ctz(m), g.line,
           short_name(g.file), f.mask);
    if (f.op == MINIDL_BALLOT && *(const int*)g.given) ballot |= m & -m;
  }
  for (unsigned m = members; m; m &= m - 1) {
    Fibre& g = lanes[__builtin_ctz(m)];
    if (f.op == MINIDL_SHUFFLE && members >> g.source & 1)
      memcpy(g.result, lanes[g.source].given, g.n_bytes);
    else if (f.op == MINIDL_SHUFFLE)
      odd_shuffle(g, __builtin_ctz(m), warp);
    if (f.op == MINIDL_BALLOT) memcpy(g.result, &ballot, sizeof ballot);
  }
  for (unsigned m = members; m; m &= m - 1) lanes[__builtin_ctz(m)].state = READY;
  // Only __syncwarp orders accesses of memory. A shuffle does not.
  if (observer && f.op == MINIDL_SYNCWARP) observer->warp_barrier(warp, members);
  e->waiting[warp] &= ~members;
  e->spins = 0;
  return true;
}

// A barrier does not wait for a warp if all its 32 lanes have executed `return` (since compute
// capability 7.0; PTX ISA, "barrier"). If a warp has reached the kernel's last line without
// `return`, it has missed the barrier, because the barrier stands in a branch.
void leave(int i) {
  Engine* e = engine;
  const int warp = i / 32, begin = warp * 32;
  e->returned_lanes[warp] |= 1u << i % 32;
  if (~e->returned_lanes[warp]) return;
  const int end = begin + 32 < e->n ? begin + 32 : e->n;
  for (int k = begin; k < end; ++k)
    if (!e->fibres[k].by_return) return;
  e->n_gone += end - begin;
  if (e->arrived && e->arrived + e->n_gone == e->n) release_barrier();
}

// Runs one CUDA thread, on its own stack.
void fibre_main() {
  Engine* e = engine;
  e->run(e->launch, current().thread, e->block);
  e = engine;
  Fibre& f = current();
  int i = index_of(f);
  f.state = RETURNED;
  if (!f.by_return) f.line = 0;
  e->n_returned++;
  e->spins = 0;
  leave(i);
  // lanes that wait for this thread may now run
  for (unsigned m = e->waiting[i / 32]; m; m &= m - 1) {
    Fibre& g = e->fibres[i / 32 * 32 + __builtin_ctz(m)];
    if (g.state == IN_WARP) complete_warp_call(g);
  }
  yield();
  __builtin_unreachable();
}

// Makes a stack for a new thread. The first switch to this stack begins fibre_main.
void* fresh_stack(int i) {
  char* bottom = engine->stacks + i * kStackBytes;
  // Stacks that lie a power of two apart use the same sets of the cache. So each stack is shifted
  // by some cache lines.
  void** top = (void**)(bottom + kStackBytes - 128 - i % 61 * 128);
#if defined(__x86_64__)
  top[-1] = nullptr;            // no return address, because fibre_main never returns
  top[-2] = (void*)fibre_main;  // where minidl_switch returns to
  return top - 8;               // leaves room for six registers
#else
  memset(top - 20, 0, 160);
  top[-20 + 11] = (void*)fibre_main;  // x30, the link register
  return top - 20;
#endif
}

// When a CPU thread ends, its engine is freed, because a program may start a new thread for each
// step. The guard pages of a block of 1024 threads need 2,048 mappings, and Linux allows a process
// only 65,530 mappings.
pthread_key_t at_thread_end;

void release(void* ended) {
  Engine* e = (Engine*)ended;
  munmap(e->stacks, kMaxThreads * kStackBytes);
  free(e->dynamic - MINIDL_GUARD_BYTES);
  free(e);
  engine = nullptr;
}

__attribute__((constructor)) void start() {
  pthread_key_create(&at_thread_end, release);
  memset(pattern, 0xa5, sizeof pattern);
}

bool make_engine(void* at = nullptr) {
  void* memory = mmap(at, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;  // 640 MiB of address space
  engine = (Engine*)calloc(1, sizeof(Engine));
  engine->stacks = (char*)memory;
  engine->dynamic = (char*)aligned_alloc(256, kDynamicBytes + 2 * MINIDL_GUARD_BYTES);
  engine->dynamic += MINIDL_GUARD_BYTES;
  pthread_setspecific(at_thread_end, engine);
  return true;
}

// Makes the guard pages of the first n stacks. To make a guard page takes a microsecond, so only
// stacks that are used get one.
void guard_stacks(int n) {
  for (; engine->n_guarded < n; ++engine->n_guarded)
    mprotect(engine->stacks + engine->n_guarded * kStackBytes, kGuardBytes, PROT_NONE);
}

// Fills `order` with the numbers 0 to n - 1. kind 0: ascending, 1: descending, else: a Fisher-Yates
// shuffle with random numbers from xorshift64.
void fill_order(int* order, int n, int kind) {
  for (int i = 0; i < n; ++i) order[i] = kind == 1 ? n - 1 - i : i;
  if (kind == 0 || kind == 1) return;
  unsigned long long x = 0x9e3779b97f4a7c15ull * (unsigned)kind + 1;
  for (int i = n - 1; i > 0; --i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    int k = int(x % (i + 1)), t = order[i];
    order[i] = order[k], order[k] = t;
  }
}

void add_guard(char* bytes, const char* name, const char* side) {
  Engine* e = engine;
  if (e->n_guards == kMaxGuards) return;
  e->guards[e->n_guards++] = Guard{bytes, name, side};
  memcpy(bytes, pattern, sizeof pattern);
}

// Sets the guards of dynamic shared memory for a new launch. Each __shared__ variable adds its own
// guards later.
void set_guards() {
  Engine* e = engine;
  e->n_guards = 0;
  minidl_launch_number++;
  if (!e->launch->shared_bytes) return;
  add_guard(e->dynamic + e->launch->shared_bytes, nullptr, "behind");
  add_guard(e->dynamic - MINIDL_GUARD_BYTES, nullptr, "before");
}

// Returns false, with a sentence in minidl_error(), if the block has written into a guard.
bool guards_are_whole() {
  Engine* e = engine;
  for (int i = 0; i < e->n_guards; ++i) {
    const Guard& g = e->guards[i];
    if (!memcmp(g.bytes, pattern, sizeof pattern)) continue;
    char text[500], where[200];
    if (g.name) snprintf(where, sizeof where, "the __shared__ variable %s", g.name);
    else
      snprintf(where, sizeof where, "dynamic shared memory, shared_mem=%llu", e->launch->shared_bytes);
    snprintf(text, sizeof text, "block (%u, %u, %u): a thread writes %s %s. Run the script under "
             "`minidl kernel run` to see the line", e->block.x, e->block.y, e->block.z, g.side, where);
    minidl_refuse(text);
    return false;
  }
  return true;
}

bool run_block(uint3 block) {
  Engine* e = engine;
  e->block = blockIdx = block;
  const unsigned* d = e->launch->block;
  for (int i = 0; i < e->n; ++i) {
    Fibre& f = e->fibres[i];
    f.state = READY;
    f.line = 0;
    f.file = "";
    f.by_return = false;
    f.thread = uint3{i % d[0], i / d[0] % d[1], i / d[0] / d[1]};
    f.stack_pointer = fresh_stack(i);
  }
  memset(e->waiting, 0, sizeof e->waiting);
  memset(e->returned_lanes, 0, sizeof e->returned_lanes);
  memset(e->in_tile, 0, sizeof e->in_tile);
  // If the last warp of the block has fewer than 32 threads, its missing lanes count as returned.
  if (e->n % 32) e->returned_lanes[e->n / 32] = ~0u << e->n % 32;
  e->arrived = e->votes = e->n_returned = e->n_gone = 0;
  e->spins = 0;
  e->failed = false;
  e->cursor = 0;
  Fibre& first = current();
  threadIdx = first.thread;
  if (observer) observer->block_begins();
  minidl_switch(&e->main_stack_pointer, first.stack_pointer);
  minidl_progress();
  return !e->failed && guards_are_whole();
}

struct Job {
  const MinidlLaunch* launch;
  MinidlThread run;
  const int* block_order;
  int* failed;
};

void run_blocks(const void* context, long long begin, long long end) {
  const Job& job = *(const Job*)context;
  if (!engine && !make_engine()) {
    minidl_refuse("no memory for the stacks of the threads: 640 MiB of address space");
    __atomic_store_n(job.failed, 1, __ATOMIC_RELAXED);
    return;
  }
  engine->launch = job.launch;
  engine->run = job.run;
  const unsigned *g = job.launch->grid, *d = job.launch->block;
  engine->n = d[0] * d[1] * d[2];
  guard_stacks(engine->n);
  set_guards();
  gridDim = dim3(g[0], g[1], g[2]);
  blockDim = dim3(d[0], d[1], d[2]);
  fill_order(engine->order, engine->n, job.launch->order);
  for (long long u = begin; u < end && !__atomic_load_n(job.failed, __ATOMIC_RELAXED); ++u) {
    long long b = job.block_order ? job.block_order[u] : u;
    if (!run_block(uint3{unsigned(b % g[0]), unsigned(b / g[0] % g[1]), unsigned(b / g[0] / g[1])}))
      __atomic_store_n(job.failed, 1, __ATOMIC_RELAXED);
  }
  engine->launch = nullptr;
}

// Barriers and warp calls need fibres. The flat form (form="flat") has no fibres, so such a call is
// an error in it.
void need_fibre(const char* file, int line) {
  if (engine && engine->launch) return;
  char text[600];
  snprintf(text, sizeof text, "line %d of %s: a barrier or warp call in the flat form, in which "
           "threads cannot wait for each other; leave form out, or say form='fibre'",
           line, short_name(file));
  minidl_end_launch(text);
}

}  // namespace

MINIDL_EXPORT int minidl_run_fibres(const MinidlLaunch* launch, MinidlThread run) {
  const unsigned* g = launch->grid;
  long long n_blocks = (long long)g[0] * g[1] * g[2];
  int failed = 0, *block_order = nullptr;
  if (launch->order) {
    block_order = (int*)malloc(n_blocks * sizeof(int));
    fill_order(block_order, (int)n_blocks, launch->order);
  }
  Job job = {launch, run, block_order, &failed};
  // Only a launch that looks for races has an order that is not ascending. It runs on one CPU
  // thread, so that it can be repeated exactly.
  bool good =
      minidl_parallel(MinidlWork{run_blocks, &job}, n_blocks, launch->order ? 1 : launch->threads);
  free(block_order);
  return failed || !good;
}

MINIDL_EXPORT int minidl_syncthreads(int op, int value, const char* file, int line) {
  need_fibre(file, line);
  Engine* e = engine;
  Fibre& f = current();
  e->votes += value != 0;
  f.op = op;
  f.state = AT_BARRIER;
  f.file = file;
  f.line = line;
  if (++e->arrived + e->n_gone < e->n) {
    yield();
  } else {
    release_barrier();
    if (observer) yield();  // thread 0 goes first again, so warps stay together
  }
  return f.value;
}

MINIDL_EXPORT void minidl_tile_barrier(int n_threads, const char* file, int line) {
  need_fibre(file, line);
  Engine* e = engine;
  Fibre& f = current();
  const int begin = index_of(f) / n_threads * n_threads, end = begin + n_threads;
  int& waiting = e->in_tile[(kMaxThreads + begin) / n_threads];
  f.state = AT_TILE;
  f.file = file;
  f.line = line;
  if (++waiting < n_threads) return yield();
  waiting = 0;
  for (int i = begin; i < end; ++i) {
    Fibre& g = e->fibres[i];
    if (g.line != line || g.file != file) fail_stuck();
  }
  for (int i = begin; i < end; ++i) e->fibres[i].state = READY;
  e->spins = 0;
  if (!observer) return;
  observer->tile_barrier(begin, end);
  yield();  // as at the end of minidl_syncthreads
}

MINIDL_EXPORT void minidl_warp(int op, unsigned mask, const void* value, int n_bytes, int source,
                               void* result, const char* file, int line) {
  need_fibre(file, line);
  Fibre& f = current();
  int i = index_of(f);
  f.file = file;
  f.line = line;
  if (!(mask >> i % 32 & 1))
    fail("line %d of %s: lane %d of warp %d calls with mask 0x%08x, which does not name it.", line,
         short_name(file), i % 32, i / 32, mask);
  f.op = op, f.mask = mask, f.source = source;
  f.given = value, f.n_bytes = n_bytes, f.result = result;
  f.state = IN_WARP;
  engine->waiting[i / 32] |= 1u << i % 32;
  if (!complete_warp_call(f)) yield();
}

MINIDL_EXPORT void minidl_returned(const char* file, int line) {
  if (!engine || !engine->launch) return;
  current().file = file;
  current().line = line;
  current().by_return = true;
}

MINIDL_EXPORT void minidl_spin(const char* file, int line) {
  if (!engine || !engine->launch) return;
  if (++engine->spins > kSpinLimit)
    fail("line %d of %s: an atomic is repeated without end; the thread or block that would "
         "release it never runs.",
         line, short_name(file));
  yield();
}

MINIDL_EXPORT void minidl_observe(const MinidlObserver* o) { observer = o; }

MINIDL_EXPORT void minidl_stop(const char* sentence) { fail("%s", sentence); }

MINIDL_EXPORT MinidlMemory minidl_memory() {
  if (!engine) make_engine();
  return {(char*)engine, engine->stacks, engine->dynamic, sizeof(Engine),
          kMaxThreads * kStackBytes, kDynamicBytes, kStackBytes, kGuardBytes};
}

// Makes new stacks at another address for this CPU thread. The old stacks are not freed.
MINIDL_EXPORT int minidl_new_engine(void* at) {
  engine = nullptr;
  return make_engine(at);
}

MINIDL_EXPORT int minidl_waits_at(const char** file) {
  *file = current().line ? current().file : nullptr;
  return current().line;
}

MINIDL_EXPORT void* minidl_dynamic_shared() { return engine->dynamic; }

MINIDL_EXPORT void minidl_guard(const char* name, MinidlBefore* before, char* behind, char* after) {
  before->launch = minidl_launch_number;
  add_guard(behind, name, "behind");
  add_guard(before->bytes, name, "before");
  add_guard(after, name, "before");
}

MINIDL_EXPORT unsigned minidl_lane() { return index_of(current()) % 32; }

// Ends the launch with an error at this line of the running thread.
MINIDL_EXPORT void minidl_fail(const char* sentence, const char* file, int line) {
  if (engine && engine->launch)
    fail("line %d of %s: %s (thread (%u, %u, %u))", line, short_name(file), sentence, threadIdx.x,
         threadIdx.y, threadIdx.z);
  char text[600];
  snprintf(text, sizeof text, "line %d of %s: %s", line, short_name(file), sentence);
  minidl_end_launch(text);
}

MINIDL_EXPORT void minidl_fail_assert(const char* condition, const char* file, int line) {
  char text[500];
  snprintf(text, sizeof text, "assertion failed: %s", condition);
  minidl_fail(text, file, line);
}

bool minidl_in_fibres() { return engine && engine->launch; }
void minidl_abandon_fibres() {
  if (engine) engine->launch = nullptr;
}

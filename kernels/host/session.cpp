// The check form's launch. It runs in a child process, once for each order of threads.
//
//     Python  -- fork -->  child:  order 0: watch the kernel run      -> outcomes[0], results[0]
//       |                          sets arrays and __device__ variables back
//       | waits                    order 1: ...                       -> outcomes[1], results[1]
//       v                          _exit
//     reads outcomes and results, in memory that both processes share
//
// So no error of a kernel can end Python. The child runs only this library and the kernel. In each
// launch, arrays and stacks lie at new addresses. So if a kernel keeps a pointer from an earlier
// launch, it points to unused memory, and its use is found.
// Test: tests/cuda/checks/test_check_child.py
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "guard.h"
#include "profile.h"
#include "session.h"


namespace {

struct DeviceVariable {
  u64 begin, bytes;
  const char* name;
  int element, rows, columns, is_const;
};

// minidl/cuda/checks/hooks.py declares this struct with the same layout. Change the two files
// together.
struct CheckLaunch {
  const GivenRegion* given;
  const DeviceVariable* variables;
  const int* orders;
  Outcome* outcomes;
  unsigned char *results, *device_after;  // results: for each order, the arrays that are not const
  MinidlLaunch* packed;
  int (*launch)(const MinidlLaunch*);
  u64 packed_bytes, arena, arena_bytes, dynamic_bytes, n_blocks, block_threads;
  Profile* profile;  // null: no profile
  double limit_seconds;
  int n_given, n_variables, n_orders, unused;
};

// The address ranges for stacks and arrays. No other code uses them. The addresses have at most 47
// bits, which every machine allows. Stacks use the same addresses again after kRing launches.
// Arrays begin again when they reach the end of their range.
const u64 kArenas = 0x200000000000, kStacks = 0x300000000000, kStackStep = 1ull << 31;
const int kRing = 64;
u64 next_arena = kArenas;
struct Range {
  u64 begin, end;
} retired[kRing];
int n_retired, n_launches;

const CheckLaunch* now;
const double kTick = 0.25;

bool in_kernel(u64 pc) {
  Dl_info info;
  return dladdr((void*)pc, &info) && (u64)info.dli_fbase == code_base;
}

// Runs every quarter of a second of processor time. It ends the launch if no block has ended for
// limit_seconds.
void on_tick(int, siginfo_t*, void* context) {
  static unsigned seen = ~0u;
  static int quiet;
  if (!outcome || now->limit_seconds <= 0) return;
  if (seen != minidl_progress_count()) seen = minidl_progress_count(), quiet = 0;
  if (++quiet * kTick < now->limit_seconds) return;
  MinidlFault f = {};
  unsigned long long stack;
  minidl_pc_of(context, &f, &stack);
  // The pc may lie in code of this library. Then the place of the last access is the nearest place.
  unsigned here = in_kernel(f.pc) ? f.pc - code_base + 1 : last_place;
  Finding& found = add_finding(ENDLESS, here, last_place, -1, 0);
  found.fatal = 1;
  found.offset = (long long)now->limit_seconds;
  const char* file = nullptr;
  found.size = minidl_waits_at(&file);
  found.text = (u64)file;
  found.atomics = waits_for_flag ? (int)(now->n_blocks - blocks_begun) : 0;
  outcome->stopped = outcome->finished = 1;
  fflush(nullptr);
  _exit(0);
}

// Collects the places of the calls that have not returned, innermost first. These are the words of
// the stack that point into the kernel's code. A few of the words may be old, and belong to no
// running call.
void calls_on_stack(u64 stack, Finding& f) {
  u64 own = places.stacks_begin + (running_thread() - clocks.first) * places.stack_bytes;
  u64 at = stack > own + places.stack_guard ? stack : own + places.stack_guard;
  for (int& n = outcome->n_calls; at + 8 <= own + places.stack_bytes && n < 8; at += 8) {
    u64 word = *(u64*)at;
    if (word - code_base > 1ull << 30 || !in_kernel(word)) continue;
    unsigned place = (unsigned)(word - code_base);
    bool told = place == f.where;
    for (int i = 0; i < n; ++i) told |= outcome->calls[i] == place;
    if (!told) outcome->calls[n++] = place;
  }
}

void after_fault() {
  MinidlFault fault = minidl_last_fault();
  if (!fault.signal) return;
  for (int i = 0; i < outcome->n_findings; ++i)
    if (outcome->findings[i].fatal) return;
  Finding& f = add_finding(fault.stack_overflow ? STACK_FULL : FAULTED,
                           in_kernel(fault.pc) ? fault.pc - code_base + 1 : last_place, 0, -1, 0);
  f.fatal = 1;
  f.offset = fault.address;
  f.count = fault.signal;
  if (fault.stack_overflow) calls_on_stack(fault.stack & ~7ull, f);
}

u64 result_bytes() {
  u64 n = 0;
  for (int i = 0; i < now->n_given; ++i) n += now->given[i].is_const ? 0 : now->given[i].bytes;
  return n;
}

void copy_arrays(unsigned char* saved, bool back) {
  for (int i = 0; i < now->n_given; ++i) {
    const GivenRegion& g = now->given[i];
    if (g.is_const) continue;
    if (back) memcpy((void*)g.begin, saved, g.bytes);
    else memcpy(saved, (void*)g.begin, g.bytes);
    saved += g.bytes;
  }
}

void copy_variables(unsigned char* saved, bool back) {
  for (int i = 0; i < now->n_variables; ++i) {
    const DeviceVariable& v = now->variables[i];
    if (!back) memcpy(saved, (void*)v.begin, v.bytes);
    else if (!v.is_const) memcpy((void*)v.begin, saved, v.bytes);  // const: may be read-only
    saved += v.bytes;
  }
}

void compare(const unsigned char* first, const unsigned char* mine) {
  for (int r = 0; r < now->n_given; ++r) {
    const GivenRegion& g = now->given[r];
    if (g.is_const) continue;
    if (memcmp(first, mine, g.bytes)) {
      u64 i = 0;
      while (first[i] == mine[i]) ++i;
      outcome->differs_in = r, outcome->differs_at = i;
      for (; i < g.bytes && !outcome->differs_where; ++i) {  // finds the store of this order
        const Cell& c = regions[r].cells[i / regions[r].granule];
        if (first[i] != mine[i])
          outcome->differs_where = c.write.who ? c.write.where : c.atomic.where;
      }
      return;
    }
    first += g.bytes, mine += g.bytes;
  }
}

void set_places() {
  MinidlMemory m = minidl_memory();
  Dl_info info;
  code_base = dladdr((void*)now->launch, &info) ? (u64)info.dli_fbase : 0;
  places = Places{now->arena, now->arena + now->arena_bytes,
                  (u64)m.engine, (u64)m.engine + m.engine_bytes,
                  (u64)now->packed, (u64)now->packed + now->packed_bytes,
                  (u64)m.stacks, (u64)m.stacks + m.stacks_bytes, m.stack_bytes, m.guard_bytes,
                  (u64)m.dynamic, (u64)m.dynamic + m.dynamic_bytes};
}

void run_order(int k) {
  outcome = &now->outcomes[k];
  outcome->differs_in = -1;
  for (int i = 0; i < n_regions; ++i) free(regions[i].cells);
  n_regions = 0;
  for (int i = 0; i < now->n_given; ++i) {
    const GivenRegion& g = now->given[i];
    int r = add_region(g.begin, g.bytes, g.granule, Variable{""}, g.is_const != 0);
    regions[r].uninitialised = g.uninitialised != 0;
  }
  n_given = n_regions;
  if (now->dynamic_bytes)
    add_region(places.dynamic_begin, now->dynamic_bytes, 1,
               Variable{"dynamic shared memory", 1, -1, 0, 1}, false);
  for (int i = 0; i < now->n_variables; ++i) {
    const DeviceVariable& v = now->variables[i];
    unsigned granule = v.element == 1 || v.element == 2 || v.element == 4 || v.element == 8
                           ? v.element : 1;
    add_region(v.begin, v.bytes, granule, Variable{v.name, v.element, v.rows, v.columns, 0},
               v.is_const != 0);
  }
  order.begin(now->n_blocks, now->block_threads);
  check_begin_order(k);
  if (now->profile && k == 0) minidl_profile_begin(now->profile);
  now->packed->order = now->orders[k];
  outcome->stopped = now->launch(now->packed);
  if (outcome->stopped) after_fault();
  if (now->profile && k == 0) minidl_profile_end();
  check_end_order(!outcome->stopped);
  if (outcome->stopped) snprintf(outcome->sentence, sizeof outcome->sentence, "%s", minidl_error());
}

[[noreturn]] void child() {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  signal(SIGINT, SIG_IGN);  // Python's process handles Ctrl-C and ends this one
  minidl_set_watchdog(0);   // on_tick replaces the watchdog
  minidl_new_engine((void*)(kStacks + kStackStep * (n_launches % kRing)));
  set_places();
  struct sigaction tick = {};
  tick.sa_sigaction = on_tick;
  tick.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigaction(SIGPROF, &tick, nullptr);
  itimerval every = {{0, (int)(kTick * 1e6)}, {0, (int)(kTick * 1e6)}};
  setitimer(ITIMER_PROF, &every, nullptr);
  const u64 n = result_bytes();
  u64 device_bytes = 0;
  for (int i = 0; i < now->n_variables; ++i) device_bytes += now->variables[i].bytes;
  unsigned char* before = (unsigned char*)malloc(n + 1);
  unsigned char* device_before = (unsigned char*)malloc(device_bytes + 1);
  copy_arrays(before, false);
  copy_variables(device_before, false);
  for (int k = 0; k < now->n_orders; ++k) {
    if (k) copy_arrays(before, true), copy_variables(device_before, true);
    run_order(k);
    copy_arrays(now->results + k * n, false);
    if (k == 0) copy_variables(now->device_after, false);
    else compare(now->results, now->results + k * n);
    outcome->finished = 1;
    if (outcome->stopped) break;
  }
  fflush(nullptr);
  _exit(0);
}

}  // namespace

bool is_retired(u64 address) {
  if (address - kStacks < kRing * kStackStep) return true;
  for (const Range& r : retired)
    if (address >= r.begin && address < r.end) return true;
  return false;
}

// ---- called by Python ----

// Starts the launch in a child process. Returns its process id, or -1 if no process can be made.
MINIDL_EXPORT int minidl_check_start(const CheckLaunch* launch) {
  now = launch;
  n_launches++;
  fflush(nullptr);  // otherwise the child would print the buffered text, too
  int pid = fork();
  if (pid == 0) child();
  return pid;
}

// Returns memory that the child process shares, filled with zeros. Returns null if there is none.
// fresh: true for arrays, which get an address that was not used before.
MINIDL_EXPORT void* minidl_check_map(u64 bytes, int fresh) {
  const u64 page = 1 << 16;
  void* hint = fresh ? (void*)next_arena : nullptr;
  if (fresh) {
    next_arena += (bytes + page) / page * page + page;
    if (next_arena > kStacks - (1ull << 42)) next_arena = kArenas;
  }
  int flags = MAP_SHARED | MAP_ANON;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* p = mmap(hint, bytes ? bytes : 1, PROT_READ | PROT_WRITE, flags, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

MINIDL_EXPORT void minidl_check_unmap(void* p, u64 bytes, int fresh) {
  if (fresh) retired[n_retired++ % kRing] = Range{(u64)p, (u64)p + bytes};
  munmap(p, bytes ? bytes : 1);
}

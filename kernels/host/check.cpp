// The check form's runtime: every load and store of a kernel comes by here (sanitizer.cpp calls),
// with the running CUDA thread known. For each:
//
//     1. in which array? none: out of bounds
//     2. count it: the ledger
//     3. compare with the shadow (shadow.h): who touched this element before, and is that ordered?
//
// What was found is a list of numbers; minidl/cuda/checks/sentences.py makes sentences of it.
// Test: tests/cuda/checks/test_check.py
#include <dlfcn.h>
#include <stdio.h>

#include "runtime.h"
#include "shadow.h"

namespace {

enum Kind {  // the order is known to minidl/cuda/checks/sentences.py
  OUT_OF_BOUNDS, BAD_INDEX, MISALIGNED, UNWRITTEN, UNINITIALISED, RACE, BLOCK_RACE, DOUBLE_WRITE,
  CONST_WRITE, DIVISION, NOT_ALL_WRITTEN
};

const int kMaxFindings = 200, kMaxRegions = 128, kSlack = 4096, kStackSlack = 1 << 20;

// Layouts known to minidl/cuda/checks/hooks.py.
struct Finding {
  int kind, fatal, warning, region, size, how, other_how;
  unsigned where, other_where;
  unsigned who, other_who;
  long long offset;  // in the region; or the index, the address
  u64 count, text;   // text: a C string of the compiler's
};
struct Traffic {
  u64 loads, load_bytes, stores, store_bytes, atomics, atomic_bytes;
};
struct GivenRegion {
  u64 begin, bytes;
  unsigned granule, is_const, uninitialised, unused;
};

struct Shared {
  const char* name;
  int element, rows, columns;  // rows -1: dynamic
};

Region regions[kMaxRegions];
Shared shared_info[kMaxRegions];
Traffic traffic[kMaxRegions];
int n_regions, n_given;
Finding findings[kMaxFindings];
int n_findings;
Clocks clocks;
bool active;
u64 arena_begin, arena_end, engine_begin, engine_end, launch_begin, launch_end, stacks_begin,
    stacks_end, dynamic_begin, dynamic_end, code_base;
u64 program_page;             // the last page that was found to be the kernel's own
u64 shared_low, shared_high;  // where the declared __shared__ variables lie
int last_region;
char* fenced;  // by block: has it called __threadfence() (1), or only __threadfence_block() (2)?

unsigned place(void* return_address) { return (unsigned)((u64)return_address - code_base); }
int me() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

Finding& add(Kind kind, unsigned where, unsigned other_where, int region, bool warning) {
  for (int i = 0; i < n_findings; ++i) {
    Finding& f = findings[i];
    if (f.kind == kind && f.where == where && f.other_where == other_where && f.region == region
        && f.warning == warning) {
      f.count++;
      return f;
    }
  }
  static Finding rest;
  Finding& f = n_findings < kMaxFindings ? findings[n_findings++] : rest;
  f = Finding{};
  f.kind = kind, f.where = where, f.other_where = other_where;
  f.region = region, f.warning = warning;
  f.who = clocks.first + me();
  f.count = 1;
  return f;
}

[[noreturn]] void stop(Finding& f) {
  f.fatal = 1;
  minidl_stop("stopped by the check");
  __builtin_unreachable();
}

// ---- two writes of the same value: known after the second, so looked at with the next access ----

struct Pending {
  bool waiting;
  unsigned char before[16];
  u64 address;
  Finding finding;
} pending;

void settle() {
  if (!pending.waiting) return;
  pending.waiting = false;
  const Finding& p = pending.finding;
  bool same = memcmp(pending.before, (void*)pending.address, p.size) == 0;
  int n = n_findings;
  Finding& f = add((Kind)p.kind, p.where, p.other_where, p.region, same || p.warning);
  if (n_findings > n) {
    f = p;
    f.warning = same ? 1 : p.warning;
  }
}

void race(int r, const Access& before, How now, How then, u64 address, unsigned size,
          unsigned where) {
  Region& region = regions[r];
  bool here = clocks.same_block(before);
  bool both_write = (now == WRITE || now == ATOMIC) && (then == WRITE || then == ATOMIC);
  Kind kind = here ? RACE : both_write ? DOUBLE_WRITE : BLOCK_RACE;
  // 2: the other made its writes visible by a fence, and perhaps an atomic says that it came first
  char fence = fenced[(before.who - 1) / clocks.n];
  int warning = !region.shared && (fence & 1 || (here && fence)) ? 2 : 0;
  bool two_writes = now == WRITE && then == WRITE && size <= 16 && !warning;
  Finding f{};
  f.kind = kind, f.warning = warning, f.region = r, f.size = size, f.how = now, f.other_how = then;
  f.where = where, f.other_where = before.where;
  f.who = clocks.first + me(), f.other_who = before.who;
  f.offset = address - region.begin;
  f.count = 1;
  if (two_writes) {
    pending.waiting = true;
    pending.address = address;
    pending.finding = f;
    memcpy(pending.before, (void*)address, size);
    return;
  }
  int n = n_findings;
  Finding& kept = add(kind, where, before.where, r, warning);
  if (n_findings > n) kept = f;
}

// Steps 2 and 3 for an access that lies whole in region r.
void touch(int r, u64 address, unsigned size, How how, unsigned where) {
  Region& region = regions[r];
  Traffic& t = traffic[r];
  if (how == READ) t.loads++, t.load_bytes += size;
  if (how == WRITE) t.stores++, t.store_bytes += size;
  if (how == ATOMIC) t.atomics++, t.atomic_bytes += size;
  u64 offset = address - region.begin;
  if (region.is_const && (how == WRITE || how == ATOMIC)) {
    Finding& f = add(CONST_WRITE, where, 0, r, false);
    if (f.count == 1) f.offset = offset, f.size = size;
  }
  if (region.granule > 1 && (size % region.granule || offset % region.granule)) region.refine();
  const bool atomic = how >= ATOMIC, writes = how == WRITE || how == ATOMIC;
  const int thread = me();
  Access now = {clocks.first + thread, clocks.clock[thread] | (atomic ? kAtomic : 0), where};
  bool told = false;
  auto against = [&](const Access& a, How then) {
    if (told || a.who == 0 || a.who == now.who || (atomic && a.clock & kAtomic)) return;
    if (clocks.ordered(a, thread, region.shared)) return;
    told = true;
    race(r, a, how, a.clock & kAtomic ? (then == READ ? ATOMIC_READ : ATOMIC) : then, address,
         size, where);
  };
  for (u64 i = offset / region.granule; i <= (offset + size - 1) / region.granule; ++i) {
    Cell& c = region.cells[i];
    if (!writes || how == ATOMIC) {
      bool unwritten = region.shared ? !clocks.same_block(c.write)
                                     : region.uninitialised && c.write.who == 0;
      if (unwritten && !told) {
        told = true;
        Finding& f = add(region.shared ? UNWRITTEN : UNINITIALISED, where, 0, r, false);
        if (f.count == 1) f.offset = offset, f.size = size;
      }
    }
    against(c.write, WRITE);
    if (writes) {
      against(c.read, READ);
      against(c.other_read, READ);
      if (!region.shared) against(c.block_read, READ);
      c.write = now;
    } else {
      if (c.read.who != now.who) {
        if (clocks.same_block(c.read)) c.other_read = c.read;
        else if (c.read.who) c.block_read = c.read;
      }
      c.read = now;
    }
  }
}

int region_of(u64 address) {
  if (last_region < n_regions && address - regions[last_region].begin < regions[last_region].bytes)
    return last_region;
  for (int i = 0; i < n_regions; ++i)
    if (address - regions[i].begin < regions[i].bytes) return last_region = i;
  return -1;
}

// The array that `address` is nearest to, for the message.
int nearest(u64 address, bool shared) {
  int best = -1;
  u64 distance = ~0ull;
  for (int i = 0; i < n_regions; ++i) {
    const Region& r = regions[i];
    if (r.shared != shared) continue;
    u64 end = r.begin + r.bytes;
    u64 d = address < r.begin ? r.begin - address : address < end ? 0 : address - end;
    if (d < distance) distance = d, best = i;
  }
  return best;
}

void out_of_bounds(u64 address, unsigned size, How how, unsigned where, bool shared, bool fatal) {
  int r = address < kSlack ? -1 : nearest(address, shared);  // NULL is near to nothing
  Finding& f = add(OUT_OF_BOUNDS, where, 0, r, false);
  if (f.count == 1)
    f.offset = r < 0 ? address : address - regions[r].begin, f.size = size, f.how = how;
  if (fatal) stop(f);
}

bool within(u64 address, u64 begin, u64 end) { return address - begin < end - begin; }
template <class V> bool within(u64 address, const V& v) {
  return within(address, (u64)&v, (u64)(&v + 1));
}

// Is it memory of the kernel's own library: __constant__ and __device__ variables, tables of the
// compiler?
bool is_program(u64 address) {
  if (address >> 12 == program_page) return true;
  Dl_info info;
  if (!dladdr((void*)address, &info) || (u64)info.dli_fbase != code_base) return false;
  program_page = address >> 12;
  return true;
}

// Shared memory begins with garbage: NaN as a float, -1 as an integer.
void poison(int r) { memset((void*)regions[r].begin, 0xff, regions[r].bytes); }

void block_begins() {
  settle();
  int n = blockDim.x * blockDim.y * blockDim.z;
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  clocks.begin(1 + block * n, n);
  for (int i = n_given; i < n_regions; ++i) poison(i);
}

void barrier() { settle(), clocks.barrier(); }
void warp_barrier(int warp, unsigned lanes) { settle(), clocks.warp_barrier(warp, lanes); }

const MinidlObserver observer = {block_begins, barrier, warp_barrier};

}  // namespace

// ---- what sanitizer.cpp calls ----

void minidl_access(u64 address, unsigned size, How how, void* return_address) {
  if (!active) return;
  settle();
  int r = region_of(address);
  unsigned where = place(return_address);
  if (r >= 0) {
    if (address + size <= regions[r].begin + regions[r].bytes)
      return touch(r, address, size, how, where);
    return out_of_bounds(address, size, how, where, regions[r].shared, regions[r].shared);
  }
  const u64 own_stack = stacks_begin + me() * (stacks_end - stacks_begin) / 1024;
  if (own_stack - address <= kStackSlack)
    minidl_stop("a thread needs more than 512 KiB of stack: its local arrays are too large");
  if (within(address, stacks_begin, stacks_end)) return;  // a local variable
  if (within(address, arena_begin, arena_end))
    return out_of_bounds(address, size, how, where, false, false);
  if (within(address, launch_begin, launch_end) || within(address, engine_begin, engine_end))
    return;
  if (within(address, threadIdx) || within(address, blockIdx) || within(address, blockDim)
      || within(address, gridDim))
    return;
  if (within(address, dynamic_begin, dynamic_end))
    return out_of_bounds(address, size, how, where, true, true);
  if (shared_low && address >= shared_low - kSlack && address < shared_high + kSlack)
    return out_of_bounds(address, size, how, where, true, true);
  if (is_program(address)) return;
  out_of_bounds(address, size, how, where, false, true);
}

void minidl_fence(int kind) {
  if (active) settle(), fenced[(clocks.first - 1) / clocks.n] |= kind;
}

void minidl_bad_index(long long index, const char* array, void* return_address) {
  if (!active) return;
  settle();
  Finding& f = add(BAD_INDEX, place(return_address), 0, -1, false);
  f.offset = index, f.text = (u64)array;
  stop(f);
}

void minidl_misaligned(u64 address, unsigned alignment, const char* type, void* return_address) {
  if (!active) return;
  settle();
  if (address == 0) return minidl_access(0, 1, READ, return_address);
  int r = region_of(address);
  Finding& f = add(MISALIGNED, place(return_address), 0, r, false);
  f.offset = r < 0 ? address : address - regions[r].begin;
  f.size = alignment, f.text = (u64)type;
  stop(f);
}

void minidl_division_by_zero(void* return_address) {
  if (!active) return;
  settle();
  stop(add(DIVISION, place(return_address), 0, -1, false));
}

// ---- what Python calls ----

MINIDL_EXPORT void minidl_check_begin(const GivenRegion* given, int n, u64 arena, u64 arena_bytes,
                                      u64 launch, u64 launch_bytes, u64 dynamic_bytes,
                                      u64 n_blocks, void* code) {
  for (int i = 0; i < n_regions; ++i) free(regions[i].cells);
  Dl_info info;
  code_base = dladdr(code, &info) ? (u64)info.dli_fbase : 0;
  n_findings = 0;
  n_regions = n_given = n;
  memset(traffic, 0, sizeof traffic);
  for (int i = 0; i < n; ++i) {
    const GivenRegion& g = given[i];
    regions[i] = Region{g.begin, g.bytes, g.granule, false, g.is_const != 0, g.uninitialised != 0,
                        nullptr};
    regions[i].allocate();
  }
  arena_begin = arena, arena_end = arena + arena_bytes;
  launch_begin = launch, launch_end = launch + launch_bytes;
  MinidlMemory m = minidl_memory();
  engine_begin = (u64)m.engine, engine_end = engine_begin + m.engine_bytes;
  stacks_begin = (u64)m.stacks, stacks_end = stacks_begin + m.stack_bytes;
  dynamic_begin = (u64)m.dynamic, dynamic_end = dynamic_begin + m.dynamic_bytes;
  shared_low = shared_high = 0;
  program_page = ~0ull;
  last_region = 0;
  pending.waiting = false;
  free(fenced);
  fenced = (char*)calloc(n_blocks, 1);
  if (dynamic_bytes) {
    shared_info[n_regions] = Shared{"dynamic shared memory", 1, -1, 0};
    regions[n_regions] = Region{dynamic_begin, dynamic_bytes, 1, true, false, false, nullptr};
    regions[n_regions++].allocate();
  }
  active = true;
  minidl_observe(&observer);
}

// Ends the check; returns the number of findings. Elements of `uninitialised` arrays that nobody
// wrote are found here.
MINIDL_EXPORT int minidl_check_end(int complete) {
  settle();
  active = false;
  minidl_observe(nullptr);
  for (int r = 0; r < n_given && complete; ++r) {
    if (!regions[r].uninitialised) continue;
    u64 missing = 0, first = 0, n = regions[r].bytes / regions[r].granule;
    for (u64 i = n; i-- > 0;)
      if (!regions[r].cells[i].write.who) missing++, first = i;
    if (missing == 0 || n_findings == kMaxFindings) continue;
    Finding& f = findings[n_findings++] = Finding{};
    f.kind = NOT_ALL_WRITTEN, f.region = r, f.offset = first * regions[r].granule;
    f.count = missing, f.size = regions[r].granule;
  }
  return n_findings;
}

MINIDL_EXPORT const Finding* minidl_check_findings() { return findings; }
MINIDL_EXPORT const Traffic* minidl_check_traffic() { return traffic; }
MINIDL_EXPORT int minidl_check_regions() { return n_regions; }
MINIDL_EXPORT const Shared* minidl_check_shared_info() { return shared_info; }
MINIDL_EXPORT u64 minidl_check_region_bytes(int r) { return regions[r].bytes; }

// Who wrote the byte last: a place in the code; 0 for nobody.
MINIDL_EXPORT unsigned minidl_check_writer(int r, u64 offset) {
  return regions[r].cells[offset / regions[r].granule].write.where;
}

// ---- what the kernel calls: check.h ----

MINIDL_EXPORT void minidl_check_shared(const char* name, void* p, size_t n_bytes, int element,
                                       int rows, int columns) {
  u64 address = (u64)p;
  for (int i = n_given; i < n_regions; ++i)
    if (regions[i].begin == address) return;
  if (!active || n_regions == kMaxRegions) return;
  shared_info[n_regions] = Shared{name, element, rows, columns};
  regions[n_regions] = Region{address, n_bytes, 1, true, false, false, nullptr};
  poison(n_regions);
  regions[n_regions++].allocate();
  if (!shared_low || address < shared_low) shared_low = address;
  if (address + n_bytes > shared_high) shared_high = address + n_bytes;
}

// The kernel's name for dynamic shared memory, and the size of its elements.
MINIDL_EXPORT void minidl_check_dynamic(const char* name, int element) {
  if (active && n_given < n_regions && regions[n_given].begin == dynamic_begin)
    shared_info[n_given] = Shared{name, element, -1, 0};
}

MINIDL_EXPORT void minidl_check_turn(const char* file, int line) {
  static unsigned turns;  // as in atomics.h: a spin loop lets others run now and then
  if ((++turns & 31) == 0) minidl_spin(file, line);
}

// The check form's runtime. Every load and store of a kernel calls this code through sanitizer.cpp.
// It knows which CUDA thread is running. For each access:
//
//     1. It looks for the array with this address. If there is none, the access is out of bounds.
//     2. It adds the bytes of the access to the traffic of the array.
//     3. The shadow memory (shadow.h) tells which thread accessed this element before. If the two
//        accesses are not ordered, they may be a data race.
//
// A finding is a list of numbers. minidl/cuda/checks/sentences.py makes a sentence from it.
// session.cpp runs the launch.
// Test: tests/cuda/checks/test_check.py
#include <dlfcn.h>
#include <stdio.h>

#include "locals.h"
#include "profile.h"
#include "session.h"

Region regions[kMaxRegions];
int n_regions, n_given;
Clocks clocks;
Order order;
Outcome* outcome;
bool active;
u64 code_base, code_end;
Places places;
unsigned last_place;
bool waits_for_flag;
unsigned blocks_begun;

namespace {

const int kSlack = 4096;
u64 program_page;             // the last page that was found to belong to the kernel's library
u64 shared_low, shared_high;  // where the declared __shared__ variables lie
int last_region;
u64 shared_bytes;
// ptxas allows 48 KiB of static __shared__ variables. The limit of all shared memory is 227 KiB, as
// in compute capability 9.0.
const u64 kMaxStaticBytes = 48 << 10, kMaxSharedBytes = 227 << 10;

unsigned place(void* return_address) {
  return last_place = (unsigned)((u64)return_address - code_base);
}
int me() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

[[noreturn]] void stop(Finding& f) {
  f.fatal = 1;
  minidl_stop("stopped by the check");
  __builtin_unreachable();
}

// ---- findings that are decided later ----

// Two writes without an order are no error if both write the same value. check.cpp is called before
// a write, so it can compare the values only at the next access.
struct Pending {
  bool waiting;
  unsigned char before[16];
  u64 address;
  Finding finding;
} pending;

// A loop around atomicCAS begins with a plain read, `int old = *p`. This read is correct, although
// it races with atomics: if another thread changes the word, the exchange fails, and the loop reads
// again. So races of a plain read with atomics are reported only at the end of the order. A read is
// not reported if its thread later exchanged the same word with atomicCAS.
const int kMaxHeld = 64;
Finding held[kMaxHeld];
unsigned exchanged[kMaxHeld];  // places of reads that are not reported
int n_held, n_exchanged;

void hold(const Finding& f) {
  for (int i = 0; i < n_held; ++i)
    if (held[i].where == f.where && held[i].other_where == f.other_where && held[i].kind == f.kind) {
      held[i].count++;
      return;
    }
  if (n_held < kMaxHeld) held[n_held++] = f;
}

void keep(const Finding& f) {
  int n = outcome->n_findings;
  Finding& kept = add_finding((Kind)f.kind, f.where, f.other_where, f.region, f.warning);
  if (outcome->n_findings > n) kept = f;
}

void settle() {
  if (!pending.waiting) return;
  pending.waiting = false;
  Finding f = pending.finding;
  bool same = memcmp(pending.before, (void*)pending.address, f.size) == 0;
  if (same) f.warning = 1;
  keep(f);
}

void settle_held() {
  for (int i = 0; i < n_held; ++i) {
    unsigned read = held[i].how == READ ? held[i].where : held[i].other_where;
    bool sound = false;
    for (int k = 0; k < n_exchanged; ++k) sound |= exchanged[k] == read;
    if (!sound) keep(held[i]);
  }
  n_held = 0;
}

void race(int r, const Access& before, How now, How then, u64 address, unsigned size,
          unsigned where) {
  Region& region = regions[r];
  bool here = clocks.same_block(before);
  bool both_write = (now == WRITE || now == ATOMIC) && (then == WRITE || then == ATOMIC);
  Finding f{};
  f.kind = here ? RACE : both_write ? DOUBLE_WRITE : BLOCK_RACE;
  f.region = r, f.size = size, f.how = now, f.other_how = then;
  f.where = where, f.other_where = before.where;
  f.who = clocks.first + me(), f.other_who = before.who;
  f.offset = address - region.begin;
  f.count = 1;
  // f.atomics: perhaps an atomic should publish the first access, but there was no fence
  f.atomics = !here && order.did_atomics[(before.who - 1) / clocks.n]
              && order.did_atomics[(clocks.first - 1) / clocks.n];
  if (now == WRITE && then == WRITE && size <= 16) {
    pending.waiting = true;
    pending.address = address;
    pending.finding = f;
    memcpy(pending.before, (void*)address, size);
    return;
  }
  if ((now == READ && then == ATOMIC) || (now == ATOMIC && then == READ)) return hold(f);
  keep(f);
}

// Called when the running thread does an atomicCAS of a word of `size` bytes. Then this thread's
// earlier plain reads of the word are correct. There may be several such reads, of parts of the
// word, such as the two halves of a __half2.
void absolve(Region& region, u64 address, unsigned size) {
  const u64 first = (address - region.begin) / region.granule;
  const u64 last = (address + size - 1 - region.begin) / region.granule;
  for (u64 i = first; i <= last; ++i) {
    const Cell& c = region.cells[i];
    const Access* const reads[] = {&c.read, &c.other_read, &c.block_read};
    for (const Access* a : reads) {
      if (a->who != running_thread() || a->clock & kAtomic) continue;
      bool known = false;
      for (int k = 0; k < n_exchanged; ++k) known |= exchanged[k] == a->where;
      if (!known && n_exchanged < kMaxHeld) exchanged[n_exchanged++] = a->where;
    }
  }
}

// Returns true if the running block has done an atomic, and the thread of store `a` has done an
// atomic after this store.
bool tells(const Access& a) {
  return (a.clock & ~kAtomic) <= order.atomic_at[a.who - 1]
         && order.did_atomics[(clocks.first - 1) / clocks.n];
}

// Adds the bytes to the traffic, and looks for races, for an access that lies completely in region
// r. strong: true for a volatile access. Volatile stores race with each other, but not with atomic
// or volatile reads.
void touch(int r, u64 address, unsigned size, How how, unsigned where, bool strong = false) {
  Region& region = regions[r];
  Traffic& t = outcome->traffic[r];
  if (how == READ) t.loads++, t.load_bytes += size;
  if (how == WRITE) t.stores++, t.store_bytes += size;
  if (how == ATOMIC) t.atomics++, t.atomic_bytes += size;
  u64 offset = address - region.begin;
  if (region.is_const && (how == WRITE || how == ATOMIC)) {
    Finding& f = add_finding(CONST_WRITE, where, 0, r, 0);
    if (f.count == 1) f.offset = offset, f.size = size;
  }
  if (region.granule > 1 && (size % region.granule || offset % region.granule)) region.refine();
  const bool atomic = how >= ATOMIC, writes = how == WRITE || how == ATOMIC;
  waits_for_flag = !region.shared && (atomic || strong);
  const int thread = me();
  if (atomic) order.atomic(address, thread, clocks.first, writes, region.shared);
  if (atomic && !strong && !region.shared && writes)
    order.atomic_at[clocks.first - 1 + thread] = clocks.clock[thread]++;
  Access now = {clocks.first + thread, clocks.clock[thread] | (atomic || strong ? kAtomic : 0), where};
  bool told = false;
  const Access* plain = nullptr;  // the cell's last store that is not atomic
  auto against = [&](const Access& a, How then) {
    if (told || a.who == 0 || a.who == now.who) return;
    // A volatile read of a flag may come at any time. A volatile read of data must be ordered. It
    // reads data if the writer has done an atomic after its store, because that atomic should
    // publish the data.
    bool data = strong && &a == plain && (writes || tells(a));
    if ((atomic || strong) && a.clock & kAtomic && !data) return;
    if (clocks.ordered(a, thread, region.shared, order)) return;
    told = true;
    if (a.clock & kAtomic) then = then == READ ? ATOMIC_READ : &a == plain ? WRITE : ATOMIC;
    race(r, a, how, then, address, size, where);
  };
  for (u64 i = offset / region.granule; i <= (offset + size - 1) / region.granule; ++i) {
    Cell& c = region.cells[i];
    plain = &c.write;
    if (!writes || how == ATOMIC) {
      bool unwritten =
          region.shared ? !clocks.same_block(c.write) && !clocks.same_block(c.atomic)
                        : region.uninitialised && c.write.who == 0 && c.atomic.who == 0;
      if (unwritten && !told) {
        told = true;
        Finding& f = add_finding(region.shared ? UNWRITTEN : UNINITIALISED, where, 0, r, 0);
        if (f.count == 1) f.offset = offset, f.size = size;
      }
    }
    against(c.write, WRITE);
    against(c.atomic, WRITE);
    if (!region.shared) against(c.block_atomic, WRITE);
    if (writes) {
      against(c.read, READ);
      against(c.other_read, READ);
      if (!region.shared) against(c.block_read, READ);
      if (!atomic) {
        c.write = now;
      } else {
        if (c.atomic.who && !clocks.same_block(c.atomic)) c.block_atomic = c.atomic;
        c.atomic = now;
      }
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

bool within(u64 address, u64 begin, u64 end) { return address - begin < end - begin; }
template <class V> bool within(u64 address, const V& v) {
  return within(address, (u64)&v, (u64)(&v + 1));
}

// Returns the region that is nearest to `address`, to name it in a message.
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
  int r = address < kSlack ? -1 : nearest(address, shared);  // no region is near NULL
  Finding& f = add_finding(OUT_OF_BOUNDS, where, 0, r, 0);
  if (f.count == 1)
    f.offset = r < 0 ? address : address - regions[r].begin, f.size = size, f.how = how;
  if (fatal) stop(f);
}

void stop_at(Kind kind, u64 address, unsigned size, How how, unsigned where) {
  Finding& f = add_finding(kind, where, 0, -1, 0);
  f.offset = address, f.size = size, f.how = how;
  stop(f);
}

// Returns true for memory of the kernel's own library: the compiler's tables, or unnamed variables.
bool is_program(u64 address) {
  if (address >> 12 == program_page) return true;
  Dl_info info;
  if (!dladdr((void*)address, &info) || (u64)info.dli_fbase != code_base) return false;
  program_page = address >> 12;
  return true;
}

// Fills shared memory with bytes that are nan as a float and -1 as an integer. On a GPU its first
// values are arbitrary.
void poison(int r) { memset((void*)regions[r].begin, 0xff, regions[r].bytes); }

void barrier() {
  settle(), clocks.barrier(), order.barrier(clocks.n), minidl_profile_barrier(false);
}
void warp_barrier(int warp, unsigned lanes) {
  settle(), clocks.warp_barrier(warp, lanes), order.warp_barrier(warp, lanes);
}
void tile_barrier(int begin, int end) {
  settle(), clocks.tile_barrier(begin, end), order.tile_barrier(begin, end);
}

// Called for a shuffle whose source lane does not take part. The value that it returns is different
// in each order of threads. So a result that depends on it is different, too, and is found.
unsigned char no_value;
void odd_shuffle(const char* sentence, void* result, int n_bytes) {
  memset(result, no_value, n_bytes);
  for (int i = 0; i < outcome->n_notes; ++i)
    if (!strcmp(outcome->notes[i], sentence)) return;
  if (outcome->n_notes < kMaxNotes)
    snprintf(outcome->notes[outcome->n_notes++], sizeof outcome->notes[0], "%s", sentence);
}

const MinidlObserver observer = {check_block_begins, barrier, warp_barrier, tile_barrier,
                                 odd_shuffle};

}  // namespace

unsigned running_thread() { return clocks.first + me(); }

Finding& add_finding(Kind kind, unsigned where, unsigned other_where, int region, int warning) {
  for (int i = 0; i < outcome->n_findings; ++i) {
    Finding& f = outcome->findings[i];
    if (f.kind == kind && f.where == where && f.other_where == other_where && f.region == region
        && f.warning == warning) {
      f.count++;
      return f;
    }
  }
  static Finding rest;
  Finding& f =
      outcome->n_findings < kMaxFindings ? outcome->findings[outcome->n_findings++] : rest;
  f = Finding{};
  f.kind = kind, f.where = where, f.other_where = other_where;
  f.region = region, f.warning = warning;
  f.who = running_thread();
  f.count = 1;
  return f;
}

int add_region(u64 begin, u64 bytes, unsigned granule, const Variable& variable, bool is_const) {
  if (n_regions == kMaxRegions) return -1;
  outcome->variables[n_regions] = variable;
  outcome->region_bytes[n_regions] = bytes;
  Region& r = regions[n_regions] =
      Region{begin, bytes, granule, variable.is_shared != 0, is_const, false, nullptr};
  r.allocate();
  outcome->n_regions = n_regions + 1;
  return n_regions++;
}

void check_block_begins() {
  settle();
  blocks_begun++;
  minidl_profile_barrier(true);
  int n = blockDim.x * blockDim.y * blockDim.z;
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  clocks.begin(1 + block * n, n);
  order.block_begins(n);
  minidl_locals_begin();
  for (int i = n_given; i < n_regions; ++i)
    if (regions[i].shared) poison(i);
}

void check_begin_order(int number) {
  static const unsigned char kNoValue[] = {0xff, 0x00, 0x55};
  no_value = kNoValue[number % 3];
  shared_low = shared_high = shared_bytes = 0;
  program_page = ~0ull;
  last_region = blocks_begun = 0;
  pending.waiting = false;
  n_held = n_exchanged = 0;
  clocks.n = 0;
  active = true;
  minidl_observe(&observer);
}

// Ends the check of one order of threads. Also finds elements of `uninitialised` arrays that no
// thread has written.
void check_end_order(bool complete) {
  settle(), settle_held();
  active = false;
  minidl_observe(nullptr);
  for (int r = 0; r < n_given && complete; ++r) {
    if (!regions[r].uninitialised) continue;
    u64 missing = 0, first = 0, n = regions[r].bytes / regions[r].granule;
    for (u64 i = n; i-- > 0;)
      if (!regions[r].cells[i].write.who && !regions[r].cells[i].atomic.who) missing++, first = i;
    if (missing == 0 || outcome->n_findings == kMaxFindings) continue;
    Finding& f = outcome->findings[outcome->n_findings++] = Finding{};
    f.kind = NOT_ALL_WRITTEN, f.region = r, f.offset = first * regions[r].granule;
    f.count = missing, f.size = regions[r].granule;
  }
}

// ---- called by sanitizer.cpp ----

void minidl_access(u64 address, unsigned size, How how, void* return_address) {
  if (!active) return;
  settle();
  int r = region_of(address);
  unsigned where = place(return_address);
  if (r >= 0) {
    if (address + size <= regions[r].begin + regions[r].bytes) {
      touch(r, address, size, how, where);
      minidl_profile_access(r, address, size, how, where);
      return;
    }
    return out_of_bounds(address, size, how, where, regions[r].shared, regions[r].shared);
  }
  if (within(address, places.stacks_begin, places.stacks_end)) {
    u64 own = places.stacks_begin + me() * places.stack_bytes;
    if (address - own < places.stack_guard) stop_at(STACK_FULL, address, size, how, where);
    if (address - own >= places.stack_bytes) stop_at(OTHER_STACK, address, size, how, where);
    // the address is below the running function's frame, so it belonged to a function that has
    // returned
    if (address < (u64)__builtin_frame_address(0)) stop_at(STALE, address, size, how, where);
    return minidl_local_access(address, size, how, where);
  }
  if (within(address, places.arena_begin, places.arena_end))
    return out_of_bounds(address, size, how, where, false, false);
  if (within(address, places.launch_begin, places.launch_end)
      || within(address, places.engine_begin, places.engine_end))
    return;
  if (within(address, threadIdx) || within(address, blockIdx) || within(address, blockDim)
      || within(address, gridDim))
    return;
  if (within(address, places.dynamic_begin, places.dynamic_end))
    return out_of_bounds(address, size, how, where, true, true);
  if (shared_low && address >= shared_low - kSlack && address < shared_high + kSlack)
    return out_of_bounds(address, size, how, where, true, true);
  if (is_program(address)) {
    int near = nearest(address, false);  // the address may lie after the end of a __device__ array
    if (near >= n_given && address - regions[near].begin < regions[near].bytes + 64)
      out_of_bounds(address, size, how, where, false, true);
    return;
  }
  if (is_retired(address)) stop_at(STALE, address, size, how, where);
  out_of_bounds(address, size, how, where, false, true);
}

void minidl_compare_exchange(u64 address, unsigned size, void* return_address) {
  minidl_access(address, size, ATOMIC, return_address);
  int r = active ? region_of(address) : -1;
  if (r >= 0 && address + size <= regions[r].begin + regions[r].bytes)
    absolve(regions[r], address, size);
}

// A volatile access of global memory counts as a relaxed atomic, as in PTX, so a flag may be
// volatile. A volatile access of shared memory is checked as a plain access. Old code uses it in
// place of __syncwarp(), and this is a race.
void minidl_volatile(u64 address, unsigned size, How how, void* return_address) {
  int r = active ? region_of(address) : -1;
  if (r < 0 || regions[r].shared || address + size > regions[r].begin + regions[r].bytes)
    return minidl_access(address, size, how, return_address);
  settle();
  if (how == READ) return touch(r, address, size, ATOMIC_READ, place(return_address), true);
  touch(r, address, size, WRITE, place(return_address), true);
  order.atomic(address, me(), clocks.first, true, false);
}

void minidl_called(bool begins) {
  if (active) minidl_function(begins);
}

void minidl_fence(int kind) {
  if (!active) return;
  settle();
  const int t = me();
  order.fence(t, clocks.clock[t]++, clocks.at_barrier, kind);
}

void minidl_bad_shift(long long by, void* return_address) {
  if (!active) return;
  settle();
  Finding& f = add_finding(SHIFT, place(return_address), 0, -1, 0);
  if (f.count == 1) f.offset = by;
}

void minidl_bad_index(long long index, const char* array, void* return_address) {
  if (!active) return;
  settle();
  Finding& f = add_finding(BAD_INDEX, place(return_address), 0, -1, 0);
  f.offset = index, f.text = (u64)array;
  stop(f);
}

void minidl_misaligned(u64 address, unsigned alignment, const char* type, void* return_address) {
  if (!active) return;
  settle();
  if (address == 0) return minidl_access(0, 1, READ, return_address);
  int r = region_of(address);
  Finding& f = add_finding(MISALIGNED, place(return_address), 0, r, 0);
  f.offset = r < 0 ? address : address - regions[r].begin;
  f.size = alignment, f.text = (u64)type;
  stop(f);
}

void minidl_past_object(u64 address, const char* type, void* return_address) {
  if (!active) return;
  settle();
  if (address == 0) return minidl_access(0, 1, READ, return_address);
  int r = nearest(address, false);
  if (r < n_given || address - regions[r].begin > 2 * regions[r].bytes + kSlack) r = -1;
  Finding& f = add_finding(PAST_OBJECT, place(return_address), 0, r, 0);
  f.offset = r < 0 ? address : address - regions[r].begin, f.text = (u64)type;
  stop(f);
}

void minidl_division_by_zero(void* return_address) {
  if (!active) return;
  settle();
  stop(add_finding(DIVISION, place(return_address), 0, -1, 0));
}

// ---- called by the kernel: check.h ----

MINIDL_EXPORT void minidl_check_shared(const char* name, void* p, size_t n_bytes, int element,
                                       int rows, int columns) {
  u64 address = (u64)p;
  for (int i = n_given; i < n_regions; ++i)
    if (regions[i].begin == address) return;
  if (!active) return;
  int r = add_region(address, n_bytes, 1, Variable{name, element, rows, columns, 1}, false);
  if (r < 0) return;
  poison(r);
  if (!shared_low || address < shared_low) shared_low = address;
  if (address + n_bytes > shared_high) shared_high = address + n_bytes;
  shared_bytes += n_bytes;
  u64 dynamic = 0;
  for (int i = n_given; i < n_regions; ++i)
    if (regions[i].begin == places.dynamic_begin) dynamic = regions[i].bytes;
  if (shared_bytes > kMaxStaticBytes || shared_bytes + dynamic > kMaxSharedBytes) {
    Finding& f = add_finding(TOO_MUCH_SHARED, place(__builtin_return_address(0)), 0, r, 0);
    f.offset = shared_bytes, f.size = (int)dynamic;
  }
}

// Registers the kernel's name for dynamic shared memory, and the size of its elements.
MINIDL_EXPORT void minidl_check_dynamic(const char* name, int element) {
  if (!active) return;
  for (int i = n_given; i < n_regions; ++i)
    if (regions[i].begin == places.dynamic_begin)
      outcome->variables[i] = Variable{name, element, -1, 0, 1};
}

// Called before ldmatrix reads a row. The row must be 16 bytes of shared memory, and begin at a
// multiple of 16.
MINIDL_EXPORT void minidl_check_matrix_row(const void* row) {
  if (!active) return;
  const u64 address = (u64)row;
  if (address % 16) minidl_misaligned(address, 16, "'row of ldmatrix'", __builtin_return_address(0));
  const int r = region_of(address);
  if (r < 0 || regions[r].shared) return;  // in no array: the loads of ldmatrix will report it
  settle();
  Finding& f = add_finding(NOT_SHARED, place(__builtin_return_address(0)), 0, r, 0);
  f.offset = address - regions[r].begin, f.size = 16;
  stop(f);
}

MINIDL_EXPORT void minidl_check_turn(const char* file, int line) {
  static unsigned turns;  // as in atomics.h: atomics let other threads run now and then
  if ((++turns & 31) == 0) minidl_spin(file, line);
}

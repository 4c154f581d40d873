// The declarations that check.cpp and session.cpp share. check.cpp checks one access, session.cpp
// runs a launch in several orders of threads. minidl/cuda/checks/hooks.py declares the structs of
// this file for Python, with the same layouts. Change the two files together.
#pragma once
#include "runtime.h"
#include "shadow.h"

enum Kind {  // minidl/cuda/checks/sentences.py has the same order
  OUT_OF_BOUNDS, BAD_INDEX, MISALIGNED, UNWRITTEN, UNINITIALISED, RACE, BLOCK_RACE, DOUBLE_WRITE,
  CONST_WRITE, DIVISION, NOT_ALL_WRITTEN, SHIFT, PAST_OBJECT, OTHER_STACK, STALE, FAULTED, ENDLESS,
  STACK_FULL, TOO_MUCH_SHARED, LOCAL_OUTSIDE, LOCAL_UNWRITTEN, LOCAL_ENDED,
  NOT_SHARED
};

const int kMaxFindings = 200, kMaxRegions = 192, kMaxNotes = 4;

struct Finding {
  int kind, fatal, warning, region, size, how, other_how, atomics;
  unsigned where, other_where;
  unsigned who, other_who;
  long long offset;  // an offset in the region, or an index, or an address
  u64 count, text;   // text: a C string from the compiler
};
struct Traffic {
  u64 loads, load_bytes, stores, store_bytes, atomics, atomic_bytes;
};
// A __shared__ or __device__ variable of the kernel. For dynamic shared memory, rows is -1.
struct Variable {
  const char* name;
  int element, rows, columns, is_shared;
};
struct GivenRegion {
  u64 begin, bytes;
  unsigned granule, is_const, uninitialised, unused;
};

// The result of a launch with one order of threads. It lies in memory that the child process shares
// with Python's process.
struct Outcome {
  int finished, stopped, n_findings, n_regions, n_notes;
  int differs_in;  // a region whose bytes differ from the first order's, or -1
  unsigned differs_where;  // the place of the store that wrote these bytes
  int n_calls;
  unsigned calls[8];  // places of calls on a full stack, innermost first
  u64 differs_at;
  char sentence[2048];
  char notes[kMaxNotes][512];  // warnings of the fibre engine: the launch went on
  Finding findings[kMaxFindings];
  Variable variables[kMaxRegions];  // by region; arrays come first
  u64 region_bytes[kMaxRegions];
  Traffic traffic[kMaxRegions];
};

extern Outcome* outcome;  // the result of the order that runs now
extern Region regions[kMaxRegions];
extern int n_regions, n_given;
extern Clocks clocks;
extern Order order;
extern bool active;
extern u64 code_base, code_end;

struct Places {  // where each kind of memory lies
  u64 arena_begin, arena_end, engine_begin, engine_end, launch_begin, launch_end, stacks_begin,
      stacks_end, stack_bytes, stack_guard, dynamic_begin, dynamic_end;
};
extern Places places;

Finding& add_finding(Kind kind, unsigned where, unsigned other_where, int region, int warning);
int add_region(u64 begin, u64 bytes, unsigned granule, const Variable& variable, bool is_const);
void check_block_begins();
void check_begin_order(int number);  // 0: the first
void check_end_order(bool complete);
extern unsigned last_place;  // the place of the last access
extern bool waits_for_flag;  // true if the last access read a flag that another block may set
extern unsigned blocks_begun;  // the number of blocks that have begun in this order
unsigned running_thread();   // 1 + the number of the running thread in the grid
bool is_retired(u64 address);

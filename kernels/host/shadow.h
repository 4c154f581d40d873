// Shadow memory stores, for every element of the arrays and of shared memory, which thread accessed
// it last, and when. So the check form can tell whether two accesses are ordered. If two accesses
// are ordered, the same access comes first in every run on a GPU.
//
//     thread t     w s[3] ---- barrier ---- r s[4]          r: reads, w: writes
//     clock        1              |         2
//     thread u     r s[4] ---- barrier ---- w s[3]
//
// Each thread has a clock. Every barrier and every __syncwarp advances the clock. An earlier access
// of thread t is ordered before the present access of thread u if, between the two accesses,
//   - the whole block has passed a barrier, or
//   - both t and u have passed the same __syncwarp, or the same sync() of a tile.
// Two accesses of one element race if they are not ordered and one of them is a write. Atomics do
// not race with each other. Accesses of different blocks are ordered only by fences and atomics
// (order.h). The method is FastTrack (Flanagan & Freund 2009), with CUDA's barriers.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "order.h"

const unsigned kAtomic = 0x80000000u;  // a bit of Access::clock

struct Access {
  unsigned who;    // 0: no thread. Else 1 + the thread's number in the whole grid
  unsigned clock;  // the clock of that thread, with the bit kAtomic
  unsigned where;  // the place in the kernel's code
};

struct Cell {
  Access write, atomic, read;  // the last access of each kind
  Access block_atomic;         // the last atomic of another block than the block of `atomic`
  Access other_read;           // the last read of another thread, in the block of `read`
  Access block_read;           // the last read of another block
};

// A piece of memory with its cells. Each element has its own cell. Two threads may write two
// neighbouring elements. If these elements shared a cell, the two writes would look like a race.
struct Region {
  u64 begin, bytes;
  unsigned granule;  // bytes of a cell
  bool shared, is_const, uninitialised;
  Cell* cells;

  void allocate() { cells = (Cell*)calloc(bytes / granule + 1, sizeof(Cell)); }

  // Called if an access is smaller than an element, such as one byte of a float. From then on a
  // cell belongs to one byte.
  void refine() {
    Cell* fine = (Cell*)calloc(bytes + 1, sizeof(Cell));
    for (u64 i = 0; i < bytes; ++i) fine[i] = cells[i / granule];
    free(cells);
    cells = fine;
    granule = 1;
  }
};

// The clocks of the running block.
struct Clocks {
  unsigned clock[1024];
  unsigned at_barrier;  // accesses before the block's last barrier have at most this clock
  // met[u][lane]: the clock of lane `lane` of u's warp at the last __syncwarp that both reached
  unsigned met[1024][32];
  // The same as at_barrier, for barriers of a tile that is larger than a warp. Tile k of n threads
  // has the index 1024 / n + k.
  unsigned at_tile[32];
  unsigned first;  // `who` of the block's thread 0
  int n;

  void begin(unsigned first_thread, int n_threads) {
    first = first_thread, n = n_threads;
    for (int t = 0; t < n; ++t) clock[t] = 1;
    at_barrier = 0;
    memset(at_tile, 0, sizeof at_tile);
    memset(met, 0, n * sizeof met[0]);
  }

  void barrier() {
    for (int t = 0; t < n; ++t)
      if (clock[t] > at_barrier) at_barrier = clock[t];
    for (int t = 0; t < n; ++t) clock[t] = at_barrier + 1;
  }

  void tile_barrier(int begin, int end) {
    unsigned& at = at_tile[(1024 + begin) / (end - begin)];
    for (int t = begin; t < end; ++t)
      if (clock[t] > at) at = clock[t];
    for (int t = begin; t < end; ++t) clock[t] = at + 1;
  }

  // Called when all of `lanes` have reached a __syncwarp. If an access is ordered before one of
  // these lanes, it is now ordered before all of them. So each of the lanes gets the largest
  // entries of `met` of all the lanes, and their present clocks.
  void warp_barrier(int warp, unsigned lanes) {
    unsigned joined[32] = {};
    int begin = warp * 32;
    for (unsigned m = lanes; m; m &= m - 1) {
      int lane = __builtin_ctz(m);
      for (int k = 0; k < 32; ++k)
        if (met[begin + lane][k] > joined[k]) joined[k] = met[begin + lane][k];
      joined[lane] = clock[begin + lane]++;
    }
    for (unsigned m = lanes; m; m &= m - 1)
      memcpy(met[begin + __builtin_ctz(m)], joined, sizeof joined);
  }

  bool in_tile(unsigned t, unsigned when, unsigned me) const {
    for (int n_threads = 64; n_threads <= 1024; n_threads *= 2)
      if (t / n_threads == me / n_threads && when <= at_tile[(1024 + me) / n_threads]) return true;
    return false;
  }

  bool same_block(const Access& a) const { return a.who - first < (unsigned)n; }

  // Returns true if access `a` is ordered before the present access of thread `me` of the running
  // block.
  bool ordered(const Access& a, int me, bool shared, const Order& order) const {
    unsigned t = a.who - first;
    if (a.who == 0 || t == (unsigned)me) return true;
    unsigned when = a.clock & ~kAtomic;
    if (t >= (unsigned)n)  // t is in another block, which has other shared memory
      return shared || order.ordered(a.who, when, me, false);
    return when <= at_barrier || (t / 32 == (unsigned)me / 32 && when <= met[me][t % 32])
           || in_tile(t, when, me) || order.ordered(a.who, when, me, true);
  }
};

// How fences and atomics order threads in CUDA:
//
//     thread t     data = 1;  __threadfence();  atomicAdd(&ticket, 1);       publishes
//     thread u                                  atomicAdd(&ticket, 1);  x = data;    acquires
//
// t's atomic comes first, and both atomics are on the same word. Then everything that t did before
// its fence comes before everything that u does after its atomic. The fence also covers what other
// threads of t's block did before their last common barrier. Suppose that all threads of a block do
// a fence and then a barrier. If then one thread does an atomic, this atomic publishes the accesses
// of all threads of the block. A volatile access of a flag counts as an atomic. In this model u
// needs no fence.
// Source: PTX ISA, "Memory consistency model", release and acquire patterns.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "watch.h"

const int kMaxWords = 1 << 14;  // words by which fences and atomics order threads
const int kMaxAcquired = 64;    // words from which one thread can acquire

struct Publication {
  // This publishes the accesses of thread `who` up to its clock `own`. It also publishes the
  // accesses of the other threads of the block up to their clock `cover`.
  unsigned who, own, cover;
  int kind;                  // kind of the fence, as in minidl_fence. 4: published[] counts, too
};

struct Word {
  u64 address;
  Publication* list;
  int n, capacity;

  void append(const Publication& p) {
    for (int i = n - 1; i >= 0 && i > n - 8; --i)
      if (list[i].who == p.who && list[i].own == p.own && list[i].cover == p.cover
          && list[i].kind == p.kind)
        return;
    if (n == capacity) {
      capacity = capacity ? 2 * capacity : 8;
      list = (Publication*)realloc(list, capacity * sizeof(Publication));
    }
    list[n++] = p;
  }
};

struct Acquired {
  int words[kMaxAcquired], counts[kMaxAcquired], n;

  void add(int word, int count) {
    for (int i = 0; i < n; ++i)
      if (words[i] == word) {
        if (counts[i] < count) counts[i] = count;
        return;
      }
    if (n < kMaxAcquired) words[n] = word, counts[n++] = count;
  }
  void add(const Acquired& other) {
    for (int i = 0; i < other.n; ++i) add(other.words[i], other.counts[i]);
  }
};

struct Order {
  Word words[kMaxWords];
  int n_words, block_threads;
  // These arrays have a number for each thread of the running block. fenced: the thread's clock at
  // its last fence. covered: the clock up to which this fence also orders accesses of other threads
  // of the block. before_barrier: the value of `fenced` at the last barrier.
  unsigned fenced[1024], covered[1024], before_barrier[1024];
  int kind[1024];
  // any_fence: true if there was a fence after the last barrier. at_barrier: true if a barrier of
  // the running block came after a fence.
  bool any_fence, at_barrier;
  Acquired acquired[1024], by_block;
  unsigned* published;  // for each thread of the grid: its clock that is published
  char* did_atomics;    // for each block: 1 after an atomic in global memory
  unsigned* atomic_at;  // for each thread of the grid: its clock at its last atomic

  void begin(u64 n_blocks, int threads) {
    for (int i = 0; i < n_words; ++i) free(words[i].list);
    memset(words, 0, sizeof words);
    n_words = 0, block_threads = threads;
    free(published), free(did_atomics), free(atomic_at);
    published = (unsigned*)calloc(n_blocks * threads, sizeof(unsigned));
    did_atomics = (char*)calloc(n_blocks, 1);
    atomic_at = (unsigned*)calloc(n_blocks * threads, sizeof(unsigned));
  }

  void block_begins(int n) {
    memset(fenced, 0, n * sizeof fenced[0]);
    memset(before_barrier, 0, n * sizeof fenced[0]);
    for (int t = 0; t < n; ++t) acquired[t].n = 0;
    by_block.n = 0;
    any_fence = at_barrier = false;
  }

  void barrier(int n) {
    for (int t = 0; t < n; ++t)
      if (acquired[t].n) by_block.add(acquired[t]);
    if (!any_fence) return;
    memcpy(before_barrier, fenced, n * sizeof fenced[0]);
    any_fence = false, at_barrier = true;
  }

  void warp_barrier(int warp, unsigned lanes) {
    for (unsigned m = lanes; m; m &= m - 1)
      for (unsigned k = lanes; k; k &= k - 1) {
        Acquired& from = acquired[warp * 32 + __builtin_ctz(k)];
        if (from.n) acquired[warp * 32 + __builtin_ctz(m)].add(from);
      }
  }

  void tile_barrier(int begin, int end) {
    Acquired by_tile = {};
    for (int t = begin; t < end; ++t) by_tile.add(acquired[t]);
    if (!by_tile.n) return;
    for (int t = begin; t < end; ++t) acquired[t].add(by_tile);
  }

  void fence(int t, unsigned clock, unsigned barrier_clock, int fence_kind) {
    fenced[t] = clock, covered[t] = barrier_clock;
    kind[t] = kind[t] == 1 && fenced[t] == clock ? 1 : fence_kind;
    any_fence = true;
  }

  int find(u64 address, bool make) {
    unsigned at = (unsigned)(address * 0x9e3779b97f4a7c15ull >> 40) % kMaxWords;
    for (int step = 0; step < kMaxWords; ++step, at = (at + 1) % kMaxWords) {
      if (words[at].address == address) return at;
      if (!words[at].address) break;
    }
    if (!make || n_words > kMaxWords * 3 / 4) return -1;
    n_words++;
    words[at].address = address;
    return at;
  }

  // Called when thread t of the block has done an atomic at `address`. first: Access::who
  // (shadow.h) of thread 0 of the block.
  void atomic(u64 address, int t, unsigned first, bool writes, bool shared) {
    if (!shared) did_atomics[(first - 1) / block_threads] = 1;
    int w = find(address, false);
    if (w >= 0) acquired[t].add(w, words[w].n);
    if (!writes || !(fenced[t] || at_barrier)) return;
    if (w < 0 && (w = find(address, true)) < 0) return;
    int extra = 0;
    if (at_barrier) {
      for (int u = 0; u < block_threads; ++u)
        if (before_barrier[u] > published[first - 1 + u])
          published[first - 1 + u] = before_barrier[u];
      extra = 4;
    }
    words[w].append(Publication{first + t, fenced[t], fenced[t] ? covered[t] : 0,
                                (fenced[t] ? kind[t] : 2) | extra});
  }

  bool known(const Acquired& by, unsigned who, unsigned clock, bool same_block) const {
    for (int i = 0; i < by.n; ++i) {
      const Word& w = words[by.words[i]];
      for (int k = 0; k < by.counts[i]; ++k) {
        const Publication& p = w.list[k];
        if ((p.who - 1) / block_threads != (who - 1) / block_threads) continue;
        if (p.kind & 4 && clock <= published[who - 1]) return true;
        if (!(p.kind & 1) && !same_block) continue;
        if (clock <= (p.who == who ? p.own : p.cover)) return true;
      }
    }
    return false;
  }

  // Returns true if fences and atomics order the accesses of thread `who` up to `clock` before the
  // next access of thread t.
  bool ordered(unsigned who, unsigned clock, int t, bool same_block) const {
    if (known(by_block, who, clock, same_block)) return true;
    if (same_block) return known(acquired[t], who, clock, true);
    for (int u = t / 32 * 32; u < t / 32 * 32 + 32 && u < block_threads; ++u)
      if (known(acquired[u], who, clock, false)) return true;  // t may get u's data by a shuffle
    return false;
  }
};

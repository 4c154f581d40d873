// The part of cooperative groups that lives inside a block: thread_block, tiles of a warp, reduce.
#pragma once

namespace cooperative_groups {

struct thread_block {
  unsigned rank, n;
  unsigned thread_rank() const { return rank; }
  unsigned size() const { return n; }
  unsigned num_threads() const { return n; }
  uint3 thread_index() const { return threadIdx; }
  uint3 group_index() const { return blockIdx; }
  dim3 group_dim() const { return blockDim; }
  dim3 dim_threads() const { return blockDim; }
  void sync(MINIDL_HERE) const { minidl_syncthreads(MINIDL_BARRIER, 0, file, line); }
};

MINIDL_INLINE thread_block this_thread_block() {
  return {threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z),
      blockDim.x * blockDim.y * blockDim.z};
}

// `N` neighbouring lanes, N a power of two up to 32.
template <unsigned N, class Parent = thread_block> struct thread_block_tile {
  static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0,
                "minidl: a tile has 1, 2, 4, 8, 16 or 32 threads");
  unsigned parent_rank, parent_size;
  unsigned mask() const {
    return (N == 32 ? ~0u : (1u << N % 32) - 1) << (minidl_lane() & ~(N - 1));
  }
  unsigned thread_rank() const { return parent_rank % N; }
  static constexpr unsigned size() { return N; }
  static constexpr unsigned num_threads() { return N; }
  unsigned meta_group_rank() const { return parent_rank / N; }
  unsigned meta_group_size() const { return (parent_size + N - 1) / N; }
  void sync(MINIDL_HERE) const { __syncwarp(mask(), file, line); }
  template <class T> T shfl(T v, int source, MINIDL_HERE) const {
    return __shfl_sync(mask(), v, source, N, file, line);
  }
  template <class T> T shfl_up(T v, unsigned d, MINIDL_HERE) const {
    return __shfl_up_sync(mask(), v, d, N, file, line);
  }
  template <class T> T shfl_down(T v, unsigned d, MINIDL_HERE) const {
    return __shfl_down_sync(mask(), v, d, N, file, line);
  }
  template <class T> T shfl_xor(T v, unsigned d, MINIDL_HERE) const {
    return __shfl_xor_sync(mask(), v, d, N, file, line);
  }
  int any(int p, MINIDL_HERE) const { return __any_sync(mask(), p, file, line); }
  int all(int p, MINIDL_HERE) const { return __all_sync(mask(), p, file, line); }
  unsigned ballot(int p, MINIDL_HERE) const {
    return __ballot_sync(mask(), p, file, line) >> (minidl_lane() & ~(N - 1));
  }
  template <class T> unsigned match_any(T v, MINIDL_HERE) const {
    return __match_any_sync(mask(), v, file, line) >> (minidl_lane() & ~(N - 1));
  }
  template <class T> unsigned match_all(T v, int& all, MINIDL_HERE) const {
    return __match_all_sync(mask(), v, &all, file, line) >> (minidl_lane() & ~(N - 1));
  }
};

template <unsigned N> MINIDL_INLINE thread_block_tile<N> tiled_partition(const thread_block& b) {
  return {b.rank, b.n};
}
template <unsigned N, unsigned M, class P>
MINIDL_INLINE thread_block_tile<N> tiled_partition(const thread_block_tile<M, P>& t) {
  return {t.parent_rank % M, M};
}

// The threads that happen to be here together. Any set of them is a correct answer; here it is each
// alone, as for __activemask().
struct coalesced_group {
  unsigned thread_rank() const { return 0; }
  unsigned size() const { return 1; }
  unsigned num_threads() const { return 1; }
  unsigned meta_group_rank() const { return minidl_lane(); }
  unsigned meta_group_size() const { return 32; }
  void sync() const {}
  template <class T> T shfl(T v, int) const { return v; }
  template <class T> T shfl_up(T v, unsigned) const { return v; }
  template <class T> T shfl_down(T v, unsigned) const { return v; }
  int any(int p) const { return p != 0; }
  int all(int p) const { return p != 0; }
  unsigned ballot(int p) const { return p != 0; }
  template <class T> unsigned match_any(T) const { return 1; }
};
MINIDL_INLINE coalesced_group coalesced_threads() { return {}; }
template <class T, class Op> MINIDL_INLINE T reduce(const coalesced_group&, T v, Op) { return v; }

// Any of the groups above, or a part of one whose size is only known when it runs.
struct thread_group {
  unsigned rank, n, lanes;  // lanes: of a warp; 0: the block
  thread_group(const thread_block& b) : rank(b.rank), n(b.n), lanes(0) {}
  thread_group(const coalesced_group&) : rank(0), n(1), lanes(1u << minidl_lane()) {}
  template <unsigned N, class P>
  thread_group(const thread_block_tile<N, P>& t) : rank(t.thread_rank()), n(N), lanes(t.mask()) {}
  thread_group(unsigned rank, unsigned n, unsigned lanes) : rank(rank), n(n), lanes(lanes) {}
  unsigned thread_rank() const { return rank; }
  unsigned size() const { return n; }
  unsigned num_threads() const { return n; }
  void sync(MINIDL_HERE) const {
    if (lanes) __syncwarp(lanes, file, line);
    else minidl_syncthreads(MINIDL_BARRIER, 0, file, line);
  }
};
MINIDL_INLINE thread_group tiled_partition(const thread_group& g, unsigned n) {
  const unsigned all = n == 32 ? ~0u : (1u << n % 32) - 1;
  return {g.rank % n, n, all << (minidl_lane() & ~(n - 1))};
}
MINIDL_INLINE thread_group this_thread() { return {0, 1, 1u << minidl_lane()}; }
template <class Group> MINIDL_INLINE unsigned thread_rank(const Group& g) {
  return g.thread_rank();
}
template <class Group> MINIDL_INLINE unsigned group_size(const Group& g) { return g.size(); }

template <class Group> MINIDL_INLINE void sync(const Group& g, MINIDL_HERE) { g.sync(file, line); }

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

// A butterfly: every lane ends with the same bits, because each adds the same pairs.
template <unsigned N, class P, class T, class Op>
MINIDL_INLINE T reduce(const thread_block_tile<N, P>& tile, T v, Op op, MINIDL_HERE) {
  for (unsigned d = N / 2; d; d /= 2) v = op(v, tile.shfl_xor(v, d, file, line));
  return v;
}

// Sums (or op) of the lanes before a lane, with its own or without: 0 for the first.
template <unsigned N, class P, class T, class Op>
MINIDL_INLINE T inclusive_scan(const thread_block_tile<N, P>& tile, T v, Op op, MINIDL_HERE) {
  for (unsigned d = 1; d < N; d *= 2) {
    T before = tile.shfl_up(v, d, file, line);
    if (tile.thread_rank() >= d) v = op(before, v);
  }
  return v;
}
template <unsigned N, class P, class T, class Op>
MINIDL_INLINE T exclusive_scan(const thread_block_tile<N, P>& tile, T v, Op op, MINIDL_HERE) {
  T before = tile.shfl_up(inclusive_scan(tile, v, op, file, line), 1, file, line);
  return tile.thread_rank() ? before : T{};
}
template <unsigned N, class P, class T>
MINIDL_INLINE T inclusive_scan(const thread_block_tile<N, P>& tile, T v, MINIDL_HERE) {
  return inclusive_scan(tile, v, plus<T>(), file, line);
}
template <unsigned N, class P, class T>
MINIDL_INLINE T exclusive_scan(const thread_block_tile<N, P>& tile, T v, MINIDL_HERE) {
  return exclusive_scan(tile, v, plus<T>(), file, line);
}

}  // namespace cooperative_groups

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

}  // namespace cooperative_groups

// The part of cooperative groups that works inside a block: thread_block, tiles, reduce.
#pragma once

namespace cooperative_groups {

// The warps of a tile with several warps exchange values through this memory.
struct MinidlTiles {
  alignas(16) char values[32][32];  // one row for each warp of the block
};
template <unsigned MaxBlockSize = 1024> struct block_tile_memory {
  MinidlTiles tiles;
};

struct thread_block {
  unsigned rank, n;
  MinidlTiles* memory = nullptr;  // for large tiles
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

// All threads of the block must call this function.
template <unsigned N>
MINIDL_INLINE thread_block this_thread_block(block_tile_memory<N>& memory, MINIDL_HERE) {
  thread_block b = this_thread_block();
  if (b.n > N)
    minidl_fail("the block has more threads than its block_tile_memory is for", file, line);
  b.memory = &memory.tiles;
  b.sync(file, line);
  return b;
}

// A tile of N neighbouring lanes. N is a power of two up to 32.
template <unsigned N, class Parent = thread_block, bool is_large = (N > 32)>
struct thread_block_tile {
  static_assert(N >= 1 && N <= 1024 && (N & (N - 1)) == 0,
                "minidl: a tile has 1, 2, 4, 8, 16, ... or 1024 threads");
  unsigned parent_rank, parent_size;
  MinidlTiles* memory;
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

// A tile of several whole warps. The warps exchange values through the memory given to
// this_thread_block.
template <unsigned N, class Parent> struct thread_block_tile<N, Parent, true> {
  static_assert(N <= 1024 && (N & (N - 1)) == 0, "minidl: a tile has 64, 128, ... or 1024 threads");
  unsigned parent_rank, parent_size;
  MinidlTiles* memory;
  unsigned thread_rank() const { return parent_rank % N; }
  static constexpr unsigned size() { return N; }
  static constexpr unsigned num_threads() { return N; }
  unsigned meta_group_rank() const { return parent_rank / N; }
  unsigned meta_group_size() const { return parent_size / N; }

  void sync(MINIDL_HERE) const { minidl_tile_barrier(N, file, line); }
  // Returns where the tile's warp number `warp` puts its value for the other warps.
  template <class T> T& value(unsigned warp) const {
    static_assert(sizeof(T) <= 32, "minidl: a large tile exchanges values of 32 bytes at most");
    return *(T*)memory->values[this_thread_block().rank / N * (N / 32) + warp];
  }
  template <class T> T shfl(T v, unsigned source, MINIDL_HERE) const {
    if (thread_rank() == source % N) value<T>(0) = v;
    sync(file, line);
    const T result = value<T>(0);
    sync(file, line);
    return result;
  }
  // Reduces each warp, and then the results of the warps, in a fixed order. So every thread gets
  // the same bits.
  template <class T, class Op> T reduce(T v, Op op, MINIDL_HERE) const {
    for (unsigned d = 16; d; d /= 2) v = op(v, __shfl_xor_sync(~0u, v, d, 32, file, line));
    if (minidl_lane() == 0) value<T>(thread_rank() / 32) = v;
    sync(file, line);
    v = value<T>(0);
    for (unsigned warp = 1; warp < N / 32; ++warp) v = op(v, value<T>(warp));
    sync(file, line);
    return v;
  }
  int any(int p, MINIDL_HERE) const {
    return reduce(p != 0, [](int a, int b) { return a | b; }, file, line);
  }
  int all(int p, MINIDL_HERE) const { return !any(!p, file, line); }
};

template <unsigned N, class Parent>
MINIDL_INLINE thread_block_tile<N> minidl_tile(const Parent& of, unsigned rank, unsigned n,
                                               const char* file, int line) {
  if (N > 32 && !of.memory)
    minidl_fail("a tile of more than 32 threads needs memory: __shared__ cg::block_tile_memory<> "
                "memory; cg::thread_block block = cg::this_thread_block(memory);", file, line);
  if (N > 32 && n % N)
    minidl_fail("a block, or a tile, is divided into large tiles without a rest", file, line);
  return {rank, n, of.memory};
}
template <unsigned N>
MINIDL_INLINE thread_block_tile<N> tiled_partition(const thread_block& b, MINIDL_HERE) {
  return minidl_tile<N>(b, b.rank, b.n, file, line);
}
template <unsigned N, unsigned M, class P>
MINIDL_INLINE thread_block_tile<N> tiled_partition(const thread_block_tile<M, P>& t, MINIDL_HERE) {
  return minidl_tile<N>(t, t.parent_rank % M, M, file, line);
}

// The group of the threads that run together at the moment. CUDA does not say which threads these
// are. In this header the group always has one thread, as in __activemask().
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

// Any group of this header, or a part of a group whose size is known only at run time.
struct thread_group {
  unsigned rank, n, lanes;  // lanes: of a warp. 0 stands for the whole block
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

// The lanes exchange values as in a butterfly. Each lane combines the same pairs, so all lanes get
// the same bits.
template <unsigned N, class P, class T, class Op>
MINIDL_INLINE T reduce(const thread_block_tile<N, P>& tile, T v, Op op, MINIDL_HERE) {
  if constexpr (N > 32) return tile.reduce(v, op, file, line);
  else for (unsigned d = N / 2; d; d /= 2) v = op(v, tile.shfl_xor(v, d, file, line));
  return v;
}

// For each lane, inclusive_scan combines the values of all earlier lanes and the lane's own value
// with `op`. exclusive_scan combines only the values of the earlier lanes. Its first lane gets 0.
template <unsigned N, class P, class T, class Op>
MINIDL_INLINE T inclusive_scan(const thread_block_tile<N, P>& tile, T v, Op op, MINIDL_HERE) {
  static_assert(N <= 32, "minidl: a scan over a tile larger than a warp is not supported");
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

// Barriers and warp calls. Each function passes its request to the fibre engine (fibre.cpp), which
// answers when all threads have called the function. The default arguments are the caller's file
// and line. If the kernel hangs, a message shows with them where each thread waits.
#pragma once

MINIDL_INLINE void __syncthreads(MINIDL_HERE) { minidl_syncthreads(MINIDL_BARRIER, 0, file, line); }
MINIDL_INLINE int __syncthreads_count(int v, MINIDL_HERE) {
  return minidl_syncthreads(MINIDL_BARRIER_COUNT, v, file, line);
}
MINIDL_INLINE int __syncthreads_and(int v, MINIDL_HERE) {
  return minidl_syncthreads(MINIDL_BARRIER_AND, v, file, line);
}
MINIDL_INLINE int __syncthreads_or(int v, MINIDL_HERE) {
  return minidl_syncthreads(MINIDL_BARRIER_OR, v, file, line);
}

MINIDL_INLINE void __syncwarp(unsigned mask = 0xffffffffu, MINIDL_HERE) {
  minidl_warp(MINIDL_SYNCWARP, mask, nullptr, 0, 0, nullptr, file, line);
}

template <class T> MINIDL_INLINE T minidl_shuffle(unsigned mask, T value, int source,
                                                  const char* file, int line) {
  T result;
  minidl_warp(MINIDL_SHUFFLE, mask, &value, sizeof(T), source, &result, file, line);
  return result;
}

// In these functions a lane reads the value of another lane, its source. The rules are the same as
// for PTX's instruction shfl. `width` lanes form a segment. If the source is outside of the lane's
// segment, the lane reads its own value.
template <class T> MINIDL_INLINE T __shfl_sync(unsigned mask, T v, int source, int width = 32,
                                               MINIDL_HERE) {
  int lane = minidl_lane();
  return minidl_shuffle(mask, v, (lane & ~(width - 1)) | (source & (width - 1)), file, line);
}
template <class T> MINIDL_INLINE T __shfl_up_sync(unsigned mask, T v, unsigned delta,
                                                  int width = 32, MINIDL_HERE) {
  int lane = minidl_lane(), source = lane - (int)delta;
  return minidl_shuffle(mask, v, source < (lane & ~(width - 1)) ? lane : source, file, line);
}
template <class T> MINIDL_INLINE T __shfl_down_sync(unsigned mask, T v, unsigned delta,
                                                    int width = 32, MINIDL_HERE) {
  int lane = minidl_lane(), source = lane + (int)delta;
  return minidl_shuffle(mask, v, source > (lane | (width - 1)) ? lane : source, file, line);
}
template <class T> MINIDL_INLINE T __shfl_xor_sync(unsigned mask, T v, int lane_mask,
                                                   int width = 32, MINIDL_HERE) {
  int lane = minidl_lane(), source = lane ^ lane_mask;
  return minidl_shuffle(mask, v, source > (lane | (width - 1)) ? lane : source, file, line);
}

MINIDL_INLINE unsigned __ballot_sync(unsigned mask, int predicate, MINIDL_HERE) {
  int given = predicate != 0;
  unsigned votes;
  minidl_warp(MINIDL_BALLOT, mask, &given, sizeof given, 0, &votes, file, line);
  return votes;
}
MINIDL_INLINE int __any_sync(unsigned mask, int predicate, MINIDL_HERE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
MINIDL_INLINE int __all_sync(unsigned mask, int predicate, MINIDL_HERE) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}
// __activemask() returns the lanes that run together at the moment. CUDA does not say which lanes
// these are. In this header each lane runs alone. A kernel that needs several lanes in the mask can
// also fail on a GPU.
MINIDL_INLINE unsigned __activemask() { return 1u << minidl_lane(); }

// Reductions over the lanes of the mask (compute capability 8.0). One shuffle for each lane gets
// its value.
template <class T, class Join>
MINIDL_INLINE T minidl_reduce(unsigned mask, T v, Join join, const char* file, int line) {
  T total = v;
  bool first = true;
  for (unsigned m = mask; m; m &= m - 1) {
    T other = minidl_shuffle(mask, v, __builtin_ctz(m), file, line);
    total = first ? other : join(total, other);
    first = false;
  }
  return total;
}
#define MINIDL_REDUCE(NAME, T, EXPRESSION)                                                    \
  MINIDL_INLINE T __reduce_##NAME##_sync(unsigned mask, T v, MINIDL_HERE) {                   \
    return minidl_reduce(mask, v, [](T a, T b) -> T { return EXPRESSION; }, file, line);      \
  }
MINIDL_REDUCE(add, int, a + b)
MINIDL_REDUCE(add, unsigned, a + b)
MINIDL_REDUCE(min, int, a < b ? a : b)
MINIDL_REDUCE(min, unsigned, a < b ? a : b)
MINIDL_REDUCE(max, int, a > b ? a : b)
MINIDL_REDUCE(max, unsigned, a > b ? a : b)
MINIDL_REDUCE(and, unsigned, a & b)
MINIDL_REDUCE(or, unsigned, a | b)
MINIDL_REDUCE(xor, unsigned, a ^ b)

template <class T> MINIDL_INLINE unsigned __match_any_sync(unsigned mask, T v, MINIDL_HERE) {
  unsigned same = 0;
  for (unsigned m = mask; m; m &= m - 1)
    if (minidl_shuffle(mask, v, __builtin_ctz(m), file, line) == v) same |= m & -m;
  return same;
}
// If all lanes of the mask have the same value, returns the mask and sets *all to 1. Otherwise
// returns 0 and sets *all to 0.
template <class T>
MINIDL_INLINE unsigned __match_all_sync(unsigned mask, T v, int* all, MINIDL_HERE) {
  unsigned same = __match_any_sync(mask, v, file, line);
  *all = same == mask;
  return *all ? mask : 0;
}

// Checks a row that ldmatrix (tensor_core.h) reads. It must begin at a multiple of 16 bytes of
// shared memory. Only the check form can tell whether memory is shared.
#ifdef MINIDL_CHECK
#define minidl_matrix_row(row, file, line) minidl_check_matrix_row(row)
#else
MINIDL_INLINE void minidl_matrix_row(const void* row, const char* file, int line) {
  if ((size_t)row % 16)
    minidl_fail("ldmatrix: a row does not begin at a multiple of 16 bytes", file, line);
}
#endif

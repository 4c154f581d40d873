// Unscales gradients and counts the values that are not finite. Mixed precision needs this before
// the optimizer's step.
//
//   g *= inverse, with inverse = 1 / loss scale
//   bad[chunk] = the number of elements that are then inf or nan
//
//   gs       many arrays of T, in tables (minidl/cuda/launch.py)
//   factor   one number in the GPU's memory, or null. g is multiplied by inverse and by *factor
// Bytes that are moved for each element, in float:
//   unscale_check   8: reads g, writes g. Array operations move 12 bytes, and also a mask
//   count_bad       4: reads g, and does not unscale it. The optimizer does this (adamw.cu)
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// A thread reads 16 bytes in each step, which gives 90%. In arrays much shorter than a chunk some
// threads have no work.
//
// Rungs: in _blocks each block takes a chunk. _many does the same with 16 bytes in each access.
// cpu/unscale_check.cu runs on a CPU.
// Wrapper: minidl/cuda/unscale_check.py   Test: tests/cuda/test_unscale_check.py
#include "bad_number.cuh"
#include "common.cuh"

#ifndef ACC  // the type of the arithmetic: float, or double for double
#define ACC float
#endif

extern "C" __global__ void unscale_check_blocks(int* bad, T* const* gs, ACC inverse,
                                                const ACC* factor, const long long* chunks,
                                                int n_chunks) {
  __shared__ int scratch[33];
  int c = blockIdx.x, count = 0;
  T* g = gs[chunks[3 * c]];
  if (factor) inverse *= *factor;
  for (long long i = chunks[3 * c + 1] + threadIdx.x; i < chunks[3 * c + 2]; i += blockDim.x) {
    g[i] = from_float<T>(to_float(g[i]) * inverse);
    count += bad_number(to_float(g[i]));
  }
  count = block_sum(count, scratch);
  if (threadIdx.x == 0) bad[c] = count;
}

extern "C" __global__ void unscale_check_many(int* bad, T* const* gs, ACC inverse,
                                              const ACC* factor, const long long* chunks,
                                              int n_chunks) {
  __shared__ int scratch[33];
  int c = blockIdx.x;
  T* g = gs[chunks[3 * c]];
  if (factor) inverse *= *factor;
  long long begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
  int count = 0;
  const bool whole = packs(g + begin);
  for (long long i = begin + PACK(T) * threadIdx.x; i < end; i += PACK(T) * blockDim.x) {
    Pack<T> pack = load_pack(g + i, end - i, whole);
    for (int k = 0; k < PACK(T); ++k) {
      pack.at[k] = from_float<T>(to_float(pack.at[k]) * inverse);
      // Elements after the end are 0. They must not be counted: if inverse is inf, 0 * inf is nan.
      count += i + k < end && bad_number(to_float(pack.at[k]));
    }
    store_pack(g + i, pack, end - i, whole);
  }
  count = block_sum(count, scratch);
  if (threadIdx.x == 0) bad[c] = count;
}

extern "C" __global__ void count_bad_blocks(int* bad, const T* const* gs, const long long* chunks,
                                            int n_chunks) {
  __shared__ int scratch[33];
  int c = blockIdx.x, count = 0;
  const T* g = gs[chunks[3 * c]];
  for (long long i = chunks[3 * c + 1] + threadIdx.x; i < chunks[3 * c + 2]; i += blockDim.x)
    count += bad_number(to_float(g[i]));
  count = block_sum(count, scratch);
  if (threadIdx.x == 0) bad[c] = count;
}

extern "C" __global__ void count_bad_many(int* bad, const T* const* gs, const long long* chunks,
                                          int n_chunks) {
  __shared__ int scratch[33];
  int c = blockIdx.x, count = 0;
  const T* g = gs[chunks[3 * c]];
  const long long begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
  const bool whole = packs(g + begin);
  for (long long i = begin + PACK(T) * threadIdx.x; i < end; i += PACK(T) * blockDim.x) {
    const Pack<T> pack = load_pack(g + i, end - i, whole);  // zeros after the end do not count
    for (int k = 0; k < PACK(T); ++k) count += bad_number(to_float(pack.at[k]));
  }
  count = block_sum(count, scratch);
  if (threadIdx.x == 0) bad[c] = count;
}

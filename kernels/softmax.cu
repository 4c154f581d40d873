// Softmax over rows: turns the scores of each row into a distribution. With -DLOG=1 the result is
// the logarithm of the distribution.
//
//   m = max(x)      y = e^(x - m) / sum of e^(x - m)
//                   log: y = (x - m) - log(sum of e^(x - m))
//   backward        gx = y * (gy - sum of gy * y)
//                   log: gx = gy - e^y * sum of gy
//
//   x, y, gy, gx    rows x cols of type T
//
// Each row takes three steps: find m, add up the sum, write y. Each step needs the whole row. The
// versions differ in two things: which threads share a row, and which steps read x from memory. In
// the table, the number under an element is the number of the thread that takes it:
//
//                                                     x is read                        e^(x - m)
//   elements of a row    x0 x1 x2 x3 x4 x5 x6 x7 ..   from memory                      is computed
//   v1   one thread       0  0  0  0  0  0  0  0      3 times: for m, for sum, for y   twice
//   v2   a block          0  1  2  3  4  5  6  7      2 times: for m and sum, for y    twice
//   v3   a warp           0  1  2  3  4  5  6  7      once                             once
//   v4   a warp           0  0  0  0  1  1  1  1      once                             once
//   v5   a block          0  0  0  0  1  1  1  1      once                             once
//
// After the last thread of the warp or block, thread 0 takes the next elements. This goes on to the
// end of the row. v1 and v2 read the same x again, because a thread does not keep its elements. In
// v3, v4 and v5 a thread keeps its elements in registers, so x is read only once. In v4 and v5 a
// thread reads 16 bytes in one access: 4 neighbours in float (as in the table), 8 in half.
//
// Bytes that are moved for each element, in float. A read or a write of one number is 4 bytes:
//   forward      v1   x 3 times, y once: 16           v2   12      v3, v4, v5    8
//   backward     v1   gy and y twice, gx once: 20     v2   20      v3, v4, v5   12
//   On a CPU: cpu/softmax.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// v4 reaches 85 to 90% in float and in half, as in layer_norm.cu. An SM computes 16 exponentials a
// cycle. So the exponentials of a row take less time than its reads and writes. v5 reaches 80%,
// because it waits at its barriers. v3 reaches 85% in float. In half it reaches 75%, because a warp
// reads only 64 bytes at once. In rows of 32 elements each lane of v3 has one element, and most
// lanes of v4 have no element. Then v3 and v4 reach half of these shares. v2 reaches 60%, because
// it reads x a second time, from the L2 cache.
//
// Source: Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), for v2.
// Wrapper: minidl/ops/softmax.py   Test: tests/ops/test_softmax_kernel.py
//                                    Tutorial: tutorials/03_kernel_tour.py
#include "softmax.cuh"

#ifndef KEEP  // how many elements of a row a thread of v3, v4 or v5 keeps in registers
#define KEEP 32
#endif

// v1: one thread computes a row, in three loops: maximum, sum, result. The 32 threads of a warp
// read from 32 rows at once. So the warp fetches 32 cache lines, and uses one number of each.
extern "C" __global__ void softmax_v1(T* y, const T* x, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    T* yr = y + (long long)row * cols;
    ACC m = -INFINITY, sum = 0;
    for (int j = 0; j < cols; ++j) {
      ACC s = to_float(xr[j]);
      m = s > m ? s : m;
    }
    for (int j = 0; j < cols; ++j) sum += exp_below_zero(to_float(xr[j]) - m);
    ACC last = last_of(sum);
    for (int j = 0; j < cols; ++j) yr[j] = result(to_float(xr[j]) - m, last);
  }
}

// v2: a block shares a row. One loop makes both the maximum and the sum ("online" softmax), so x is
// read twice and not three times. When a thread finds a larger maximum, it corrects its sum: e^(x -
// new) = e^(x - old) * e^(old - new).
//
// After the loop, each thread has the maximum and the sum of its own elements. block_max and
// block_sum join these results into one maximum and one sum of the row. Each of the two functions
// has two barriers, __syncthreads() (common.cuh). The first barrier stands before warp 0 reads the
// numbers that lane 0 of each warp has written to scratch. Without this barrier, warp 0 adds
// numbers that are not written yet. The second barrier stands before all threads read the result.
// Without it, a fast warp reads an old value in place of the result. Every thread must reach each
// barrier, so the kernel has no `return` before a barrier.
extern "C" __global__ void softmax_v2(T* y, const T* x, int rows, int cols) {
  __shared__ ACC scratch[33];
  const T* xr = x + (long long)blockIdx.x * cols;
  T* yr = y + (long long)blockIdx.x * cols;
  ACC mine = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC s = to_float(xr[j]);
    if (s == -INFINITY) continue;  // e^-inf adds 0, but -inf - (-inf) is nan
    if (s > mine) {
      sum *= exp_below_zero(mine - s);
      mine = s;
    }
    sum += exp_below_zero(s - mine);
  }
  ACC m = block_max(mine, scratch),
      last = last_of(block_sum(sum * exp_below_zero(mine - m), scratch));
  for (int j = threadIdx.x; j < cols; j += blockDim.x)
    yr[j] = result(to_float(xr[j]) - m, last);
}

// The common code of v3, v4 and v5. A team of threads (a warp or a block) keeps a row in registers.
// So x is read once, and each exponential is computed once. A thread keeps up to KEEP elements. It
// takes N neighbours in one access, then the N neighbours that lie N * team columns later, and so
// on.
template <int N>
__device__ __forceinline__ void softmax_kept(T* y, const T* x, int row, int thread, int team,
                                             int cols, ACC* scratch) {
  const T* xr = x + (long long)row * cols;
  T* yr = y + (long long)row * cols;
  const bool whole = packs(xr) && packs(yr);
  ACC v[KEEP], m = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k += N) take<N>(v + k, xr, column<N>(thread, team, k), cols, whole);
#pragma unroll
  for (int k = 0; k < KEEP; ++k) {
    if (column<N>(thread, team, k) >= cols) v[k] = -INFINITY;
    m = v[k] > m ? v[k] : m;
  }
  m = team_max(m, scratch);
#pragma unroll
  for (int k = 0; k < KEEP; ++k) {
    v[k] -= m;
    ACC e = column<N>(thread, team, k) < cols ? exp_below_zero(v[k]) : ACC(0);
    sum += e;
    if (!LOG) v[k] = e;
  }
  ACC last = last_of(team_sum(sum, scratch));
#pragma unroll
  for (int k = 0; k < KEEP; ++k) v[k] = LOG ? v[k] - last : v[k] * last;
#pragma unroll
  for (int k = 0; k < KEEP; k += N) put<N>(yr, v + k, column<N>(thread, team, k), cols, whole);
}

// v3: a warp shares a row, for cols <= 32 * KEEP.
extern "C" __global__ void softmax_v3(T* y, const T* x, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_kept<1>(y, x, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v4: as v3, with 16 bytes in each access. If a row does not begin at a multiple of 16 bytes, its
// elements are read and written one by one.
extern "C" __global__ void softmax_v4(T* y, const T* x, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_kept<PACK(T)>(y, x, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v5: as v4, but a block shares a row, for cols <= blockDim * KEEP. v5 reads x once, v2 reads it
// twice.
extern "C" __global__ void softmax_v5(T* y, const T* x, int rows, int cols) {
  __shared__ ACC scratch[33];
  softmax_kept<PACK(T)>(y, x, blockIdx.x, threadIdx.x, blockDim.x, cols, scratch);
}

// ---- backward ----

// v1: one thread computes a row, in two loops: sum, result.
extern "C" __global__ void softmax_backward_v1(T* gx, const T* gy, const T* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T *gyr = gy + (long long)row * cols, *yr = y + (long long)row * cols;
    T* gxr = gx + (long long)row * cols;
    ACC sum = 0;
    for (int j = 0; j < cols; ++j) sum += term(to_float(gyr[j]), to_float(yr[j]));
    for (int j = 0; j < cols; ++j)
      gxr[j] = from_float<T>(slope(to_float(gyr[j]), to_float(yr[j]), sum));
  }
}

// v2: a block shares a row, so neighbouring threads read neighbouring elements.
extern "C" __global__ void softmax_backward_v2(T* gx, const T* gy, const T* y, int rows, int cols) {
  __shared__ ACC scratch[33];
  const T *gyr = gy + (long long)blockIdx.x * cols, *yr = y + (long long)blockIdx.x * cols;
  T* gxr = gx + (long long)blockIdx.x * cols;
  ACC sum = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x)
    sum += term(to_float(gyr[j]), to_float(yr[j]));
  sum = block_sum(sum, scratch);
  for (int j = threadIdx.x; j < cols; j += blockDim.x)
    gxr[j] = from_float<T>(slope(to_float(gyr[j]), to_float(yr[j]), sum));
}

// The common code of v3, v4 and v5. It keeps gy and y in registers, so they are read once.
template <int N>
__device__ __forceinline__ void softmax_backward_kept(T* gx, const T* gy, const T* y, int row,
                                                      int thread, int team, int cols,
                                                      ACC* scratch) {
  const T *gyr = gy + (long long)row * cols, *yr = y + (long long)row * cols;
  T* gxr = gx + (long long)row * cols;
  const bool whole = packs(gyr) && packs(yr) && packs(gxr);
  ACC g[KEEP], v[KEEP], sum = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k += N) {
    take<N>(g + k, gyr, column<N>(thread, team, k), cols, whole);
    take<N>(v + k, yr, column<N>(thread, team, k), cols, whole);
  }
#pragma unroll
  for (int k = 0; k < KEEP; ++k) sum += term(g[k], v[k]);
  sum = team_sum(sum, scratch);
#pragma unroll
  for (int k = 0; k < KEEP; ++k) g[k] = slope(g[k], v[k], sum);
#pragma unroll
  for (int k = 0; k < KEEP; k += N) put<N>(gxr, g + k, column<N>(thread, team, k), cols, whole);
}

// v3: a warp shares a row, for cols <= 32 * KEEP.
extern "C" __global__ void softmax_backward_v3(T* gx, const T* gy, const T* y, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_backward_kept<1>(gx, gy, y, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v4: as v3, with 16 bytes in each access.
extern "C" __global__ void softmax_backward_v4(T* gx, const T* gy, const T* y, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_backward_kept<PACK(T)>(gx, gy, y, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v5: as v4, but a block shares a row, for cols <= blockDim * KEEP.
extern "C" __global__ void softmax_backward_v5(T* gx, const T* gy, const T* y, int rows, int cols) {
  __shared__ ACC scratch[33];
  softmax_backward_kept<PACK(T)>(gx, gy, y, blockIdx.x, threadIdx.x, blockDim.x, cols, scratch);
}

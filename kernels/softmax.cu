// Softmax over rows: turns scores into a distribution. With -DLOG=1: the logarithm of softmax.
//
//   m = max(x)      y = e^(x - m) / sum of e^(x - m)
//                   log: y = (x - m) - log(sum of e^(x - m))
//   backward        gx = y * (gy - sum of gy * y)
//                   log: gx = gy - e^y * sum of gy
//
//   x, y, gy, gx    rows x cols of type T
//
//   forward    bytes an element in float               backward
//   v1         3 reads, 1 write:  16                     v1   4 reads, 1 write: 20
//   v2         2 reads, 1 write:  12                     v2   20
//   v3, v4, v5 1 read,  1 write:   8                     v3, v4, v5   12
//   On a CPU: cpu/softmax.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// v4 reaches 85 to 90% in float and in half, as in layer_norm.cu. An SM computes 16 e^x a cycle,
// which takes less time than to move the row. v5 reaches 80%, because it waits at its barriers. v3
// reaches 85% in float and 75% in half. In rows of 32 elements each lane of v3 has one element, and
// most lanes of v4 have no element. Then v3 and v4 reach half of these shares. v2 reaches 60%.
//
// Source: Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), for v2.
// Wrapper: minidl/ops/softmax.py   Test: tests/ops/test_softmax_kernel.py
//                                    Tutorial: tutorials/03_kernel_tour.py
#include "softmax.cuh"

#ifndef KEEP  // how many elements of a row a thread of v3, v4 or v5 keeps in registers
#define KEEP 32
#endif

// v1: a thread per row, in three loops: maximum, sum, result. Neighbouring threads read addresses
// that lie a row apart, so a warp fetches 32 cache lines for 32 numbers.
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

// v2: a block per row, online: one loop makes maximum and sum, so the row is read once less. When a
// thread finds a larger maximum, it corrects its sum: e^(x - new) = e^(x - old) * e^(old - new).
//
// Each thread has the maximum and the sum of its own columns. block_max and block_sum join the
// threads' results. Each of the two functions has two barriers, __syncthreads() (common.cuh). The
// first barrier stands before warp 0 reads the numbers that lane 0 of each warp has written to
// scratch. Without this barrier, warp 0 would add numbers that are not written yet. The second
// barrier stands before all threads read the result. Without it, a fast warp would read the
// previous row's result, or no result. Every thread must reach each barrier, so there is no
// `return` before one.
extern "C" __global__ void softmax_v2(T* y, const T* x, int rows, int cols) {
  __shared__ ACC scratch[33];
  const T* xr = x + (long long)blockIdx.x * cols;
  T* yr = y + (long long)blockIdx.x * cols;
  ACC mine = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC s = to_float(xr[j]);
    if (s == -INFINITY) continue;  // it adds 0, but -inf - (-inf) would be nan
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

// v3, v4 and v5 keep the row in registers: they read x once and compute each exponential once. Each
// thread of the team keeps KEEP elements, N neighbours at a time.
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

// v3: a warp per row, for cols <= 32 * KEEP.
extern "C" __global__ void softmax_v3(T* y, const T* x, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_kept<1>(y, x, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v4: v3 with 16 bytes an access. Every row must begin at a multiple of 16 bytes.
extern "C" __global__ void softmax_v4(T* y, const T* x, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_kept<PACK(T)>(y, x, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v5: v4 with a block per row, for cols <= blockDim * KEEP. It reads the row once less than v2.
extern "C" __global__ void softmax_v5(T* y, const T* x, int rows, int cols) {
  __shared__ ACC scratch[33];
  softmax_kept<PACK(T)>(y, x, blockIdx.x, threadIdx.x, blockDim.x, cols, scratch);
}

// ---- backward ----

// v1: a thread per row, in two loops: sum, result.
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

// v2: a block per row: neighbouring threads read neighbouring elements.
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

// Keeps gy and y in registers: both are read once.
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

// v3: a warp per row, for cols <= 32 * KEEP.
extern "C" __global__ void softmax_backward_v3(T* gx, const T* gy, const T* y, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_backward_kept<1>(gx, gy, y, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v4: v3 with 16 bytes an access.
extern "C" __global__ void softmax_backward_v4(T* gx, const T* gy, const T* y, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    softmax_backward_kept<PACK(T)>(gx, gy, y, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v5: v4 with a block per row, for cols <= blockDim * KEEP.
extern "C" __global__ void softmax_backward_v5(T* gx, const T* gy, const T* y, int rows, int cols) {
  __shared__ ACC scratch[33];
  softmax_backward_kept<PACK(T)>(gx, gy, y, blockIdx.x, threadIdx.x, blockDim.x, cols, scratch);
}

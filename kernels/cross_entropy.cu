// Cross entropy of classes: softmax, logarithm and selection in one kernel. The probabilities never
// exist in memory.
//
//   lse  = log of the sum of e^x over the row
//   loss = lse - (1 - a) * x[target] - a * mean(x)
//   gx   = g * (e^(x - lse) - a / cols - (1 - a at the target))
//   a      label smoothing: the wanted distribution is (1 - a) at the target plus a / cols
//          everywhere, and gx is g times the predicted minus the wanted one
//
//   x, gx   rows x cols of type T        loss, lse, g   one ACC a row, g the gradient of its loss
//   target  a class a row; a row whose target is ignore_index counts for nothing: loss 0, gx 0, and
//           x is not even read. Its lse is infinite, so that e^(x - lse) is 0 and not inf
//
//   forward    bytes an element in float                 backward
//   v1         2 reads: 8, the second from a CPU's cache v1, v2   1 read, 1 write: 8
//   v2, v3     1 read:  4
//   with smoothing v1 reads once more
//
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured; how: gelu.cu):
// a row of 50257 logits is a block's (v2), 8 reads of 4 bytes on the way a thread where the
// compiler unrolls: 80% in float; in half one element a request: 50%. Backward reads and writes:
// 70%.
// Wrapper: minidl/fused/cross_entropy.py   Test: tests/fused/test_cross_entropy.py
//                                          Tutorial: tutorials/03_kernel_tour.py
#include "common.cuh"

#ifndef ACC  // what sums are made in: float for float and half, double for double
#define ACC float
#endif

// The loss of a row from its maximum m, the sum of e^(x - m), its target's x and its mean.
// Differences to m first: m may be large, and what is left small.
__device__ __forceinline__ ACC row_loss(ACC m, ACC sum, ACC picked, ACC mean, ACC smoothing) {
  ACC loss = log(sum) - (1 - smoothing) * (picked - m);
  return smoothing > 0 ? loss - smoothing * (mean - m) : loss;
}

// v1: a thread per row: maximum, then sum.
extern "C" __global__ void cross_entropy_v1(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    ACC m = -INFINITY, sum = 0, total = 0;
    if (target[row] == ignore_index) {
      loss[row] = 0;
      lse[row] = INFINITY;
    } else {
      SIMD_MAX(m)
      for (int j = 0; j < cols; ++j) m = to_float(xr[j]) > m ? to_float(xr[j]) : m;
      for (int begin = 0; begin < cols; begin += AHEAD) {
        int end = min(begin + AHEAD, cols);
        fetch(xr + cols, begin, end);
        SIMD_SUM(sum)
        for (int j = begin; j < end; ++j) sum += exp_below_zero(to_float(xr[j]) - m);
      }
      if (smoothing > 0) {
        SIMD_SUM(total)
        for (int j = 0; j < cols; ++j) total += to_float(xr[j]);
      }
      loss[row] = row_loss(m, sum, to_float(xr[target[row]]), total / cols, smoothing);
      lse[row] = m + log(sum);
    }
  }
}

// One loop for maximum and sum, by each thread over its share of the row (see softmax.cu, v2).
__device__ __forceinline__ void online(const T* xr, int cols, int first, int step, ACC& m, ACC& sum,
                                       ACC& total) {
  for (int j = first; j < cols; j += step) {
    ACC v = to_float(xr[j]);
    total += v;
    if (v == -INFINITY) continue;  // adds 0, but -inf minus -inf would be no number
    if (v > m) {
      sum *= exp_below_zero(m - v);
      m = v;
    }
    sum += exp_below_zero(v - m);
  }
}

// v2: a block per row, for many classes. Each element is read once.
extern "C" __global__ void cross_entropy_v2(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  __shared__ ACC scratch[33];
  int row = blockIdx.x;
  const T* xr = x + (long long)row * cols;
  if (target[row] == ignore_index) {  // the whole block: no barrier is missed
    if (threadIdx.x == 0) loss[row] = 0, lse[row] = INFINITY;
    return;
  }
  ACC mine = -INFINITY, sum = 0, total = 0;
  online(xr, cols, threadIdx.x, blockDim.x, mine, sum, total);
  ACC m = block_max(mine, scratch);
  sum = block_sum(sum * exp_below_zero(mine - m), scratch);
  if (smoothing > 0) total = block_sum(total, scratch);
  if (threadIdx.x == 0) {
    loss[row] = row_loss(m, sum, to_float(xr[target[row]]), total / cols, smoothing);
    lse[row] = m + log(sum);
  }
}

// v3: a warp per row, for few classes: no barriers, and no idle threads where a row is shorter than
// a block.
extern "C" __global__ void cross_entropy_v3(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // guard: the whole warp
  const T* xr = x + (long long)row * cols;
  if (target[row] == ignore_index) {
    if (lane == 0) loss[row] = 0, lse[row] = INFINITY;
    return;
  }
  ACC mine = -INFINITY, sum = 0, total = 0;
  online(xr, cols, lane, 32, mine, sum, total);
  ACC m = warp_max(mine);
  sum = warp_sum(sum * exp_below_zero(mine - m));
  if (smoothing > 0) total = warp_sum(total);
  if (lane == 0) {
    loss[row] = row_loss(m, sum, to_float(xr[target[row]]), total / cols, smoothing);
    lse[row] = m + log(sum);
  }
}

// ---- backward: lse is known, so one pass ----

__device__ __forceinline__ T slope(ACC g, ACC x, ACC lse, ACC wanted) {
  return from_float<T>(g * (exp_below_zero(x - lse) - wanted));
}

// v1: a thread per row.
extern "C" __global__ void cross_entropy_backward_v1(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    T* gxr = gx + (long long)row * cols;
    ACC gr = g[row], l = lse[row], wanted = smoothing / cols;
    long long t = target[row];
    if (t == ignore_index) {
      for (int j = 0; j < cols; ++j) gxr[j] = from_float<T>(ACC(0));
    } else {
      SIMD
      for (int j = 0; j < cols; ++j) gxr[j] = slope(gr, to_float(xr[j]), l, wanted);
      gxr[t] = slope(gr, to_float(xr[t]), l, wanted + 1 - smoothing);
    }
  }
}

// v2: a block per row: neighbouring threads write neighbouring elements.
extern "C" __global__ void cross_entropy_backward_v2(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  int row = blockIdx.x;
  const T* xr = x + (long long)row * cols;
  T* gxr = gx + (long long)row * cols;
  ACC gr = g[row], l = lse[row], wanted = smoothing / cols;
  long long t = target[row];
  bool counts = t != ignore_index;
  for (int j = threadIdx.x; j < cols; j += blockDim.x)
    gxr[j] = counts ? slope(gr, to_float(xr[j]), l, j == t ? wanted + 1 - smoothing : wanted)
        : from_float<T>(ACC(0));
}

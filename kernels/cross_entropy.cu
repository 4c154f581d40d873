// Cross entropy of classes: softmax, logarithm and selection in one kernel. The probabilities are
// never written to memory.
//
//   lse  = log of the sum of e^x over the row
//   loss = lse - (1 - a) * x[target] - a * mean(x)
//   gx   = g * (e^(x - lse) - a / cols - (1 - a at the target))
//   a      label smoothing. The wanted distribution is a / cols everywhere, plus 1 - a at the
//          target. gx is g times (predicted - wanted distribution)
//
//   x, gx   rows x cols of type T
//   loss, lse, g   a number of type ACC for each row. g: the gradient of loss
//   target  a class for each row. A row whose target is ignore_index does not count: its loss and
//           gx are 0, and x is not read. Its lse is infinite, so that e^(x - lse) is 0 and not inf
//
// Bytes that are moved for each element of x, in float. A read or a write of a number is 4 bytes:
//   forward    v1         x is read twice: 8. With smoothing, x is read three times
//              v2 to v5   x is read once: 4
//   backward              x is read once, gx is written: 8
//   On a CPU: cpu/cross_entropy.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// The shares are for rows of 50257 logits. v5 reaches 85% in float: each of an SM's 2048 threads
// reads a pack of 16 bytes, so 32 KB are in flight. In a cycle, memory delivers 4 elements to an
// SM, and the SM can compute 16 exponentials, which is enough. In half memory delivers 7.5 elements
// in a cycle, which gives 80%. v2 reaches 80% in float. In half it reaches 50%, because each thread
// reads only 2 bytes at a time. In backward v5 reaches 85%, and v2 reaches 70%. With 1,000 classes
// v4 has the shares of v5.
// Wrapper: minidl/ops/cross_entropy.py   Test: tests/ops/test_cross_entropy_kernel.py
//                                          Tutorial: tutorials/03_kernel_tour.py
#include "cross_entropy.cuh"

// v1: one thread computes a row, in two loops: maximum, then sum.
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
      for (int j = 0; j < cols; ++j) m = to_float(xr[j]) > m ? to_float(xr[j]) : m;
      for (int j = 0; j < cols; ++j) sum += exp_below_zero(to_float(xr[j]) - m);
      if (smoothing > 0) {
        for (int j = 0; j < cols; ++j) total += to_float(xr[j]);
      }
      loss[row] = row_loss(m, sum, to_float(xr[target[row]]), total / cols, smoothing);
      lse[row] = m + log(sum);
    }
  }
}

// v2: a block shares a row, for many classes. Neighbouring threads read neighbouring elements. One
// loop computes maximum and sum, as in softmax_v2 (softmax.cu). block_max and block_sum join the
// threads' maxima and sums. These two functions contain the barriers (common.cuh).
extern "C" __global__ void cross_entropy_v2(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  __shared__ ACC scratch[33];
  int row = blockIdx.x;
  const T* xr = x + (long long)row * cols;
  if (target[row] == ignore_index) {  // all threads of the block return, so no barrier waits
    if (threadIdx.x == 0) loss[row] = 0, lse[row] = INFINITY;
    return;
  }
  ACC mine = -INFINITY, sum = 0, total = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC v = to_float(xr[j]);
    total += v;
    if (v == -INFINITY) continue;  // e^-inf adds 0, but -inf - (-inf) is nan
    if (v > mine) {
      sum *= exp_below_zero(mine - v);
      mine = v;
    }
    sum += exp_below_zero(v - mine);
  }
  ACC m = block_max(mine, scratch);
  sum = block_sum(sum * exp_below_zero(mine - m), scratch);
  if (smoothing > 0) total = block_sum(total, scratch);
  if (threadIdx.x == 0) {
    loss[row] = row_loss(m, sum, to_float(xr[target[row]]), total / cols, smoothing);
    lse[row] = m + log(sum);
  }
}

// The loop of v2. It goes over a thread's elements of a row, N neighbours at a time. A row of 50257
// classes may begin at any address, but a pack must begin at a multiple of 16 bytes. So the first
// pack may begin before the row. Elements outside of the row are ignored.
template <int N>
__device__ __forceinline__ void online(const T* xr, int cols, int thread, int team, ACC& m,
                                       ACC& sum, ACC& total) {
  const int shift = behind<N>(xr);
  for (int j = N * thread - shift; j < cols; j += N * team) {
    ACC v[N], top = m;
    take<N>(v, xr, j, cols, true);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (j + k < 0 || j + k >= cols) v[k] = -INFINITY;
      else total += v[k];
      top = v[k] > top ? v[k] : top;
    }
    if (top > m) {
      sum *= exp_below_zero(m - top);
      m = top;
    }
#pragma unroll
    for (int k = 0; k < N; ++k)  // e^-inf adds 0, but -inf - (-inf) is nan
      if (v[k] != -INFINITY) sum += exp_below_zero(v[k] - m);
  }
}

// Computes the loss of a row. A team of threads shares the row: a warp if scratch is null, else a
// block. Each element is read once.
template <int N>
__device__ __forceinline__ void loss_of_row(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int row, int thread, int team,
                                            int cols, long long ignore_index, ACC smoothing,
                                            ACC* scratch) {
  const T* xr = x + (long long)row * cols;
  if (target[row] == ignore_index) {  // the whole team returns, so no barrier waits
    if (thread == 0) loss[row] = 0, lse[row] = INFINITY;
    return;
  }
  ACC mine = -INFINITY, sum = 0, total = 0;
  online<N>(xr, cols, thread, team, mine, sum, total);
  ACC m = team_max(mine, scratch);
  sum = team_sum(sum * exp_below_zero(mine - m), scratch);
  if (smoothing > 0) total = team_sum(total, scratch);
  if (thread == 0) {
    loss[row] = row_loss(m, sum, to_float(xr[target[row]]), total / cols, smoothing);
    lse[row] = m + log(sum);
  }
}

// v3: a warp shares a row, for few classes. It needs no barriers. If a row has fewer elements than
// a block has threads, v2 leaves threads without work, but v3 does not.
extern "C" __global__ void cross_entropy_v3(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    loss_of_row<1>(loss, lse, x, target, row, threadIdx.x % 32, 32, cols, ignore_index, smoothing,
                   (ACC*)0);
}

// v4: as v3, with 16 bytes in each access.
extern "C" __global__ void cross_entropy_v4(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    loss_of_row<PACK(T)>(loss, lse, x, target, row, threadIdx.x % 32, 32, cols, ignore_index,
                         smoothing, (ACC*)0);
}

// v5: as v2, with 16 bytes in each access.
extern "C" __global__ void cross_entropy_v5(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  __shared__ ACC scratch[33];
  loss_of_row<PACK(T)>(loss, lse, x, target, blockIdx.x, threadIdx.x, blockDim.x, cols,
                       ignore_index, smoothing, scratch);
}

// ---- backward: lse is known, so one pass is enough ----

// v1: one thread computes a row.
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
      for (int j = 0; j < cols; ++j) gxr[j] = slope(gr, to_float(xr[j]), l, wanted);
      gxr[t] = slope(gr, to_float(xr[t]), l, wanted + 1 - smoothing);
    }
  }
}

// v2: a block shares a row, so neighbouring threads write neighbouring elements.
extern "C" __global__ void cross_entropy_backward_v2(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  int row = blockIdx.x;
  const T* xr = x + (long long)row * cols;
  T* gxr = gx + (long long)row * cols;
  ACC gr = g[row], l = lse[row], wanted = smoothing / cols;
  long long t = target[row];
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    if (t == ignore_index) gxr[j] = from_float<T>(ACC(0));
    else gxr[j] = slope(gr, to_float(xr[j]), l, j == t ? wanted + 1 - smoothing : wanted);
  }
}

// Computes gx of a row. A team of threads shares the row.
template <int N>
__device__ __forceinline__ void slopes_of_row(T* gx, const ACC* g, const T* x, const ACC* lse,
                                              const long long* target, int row, int thread,
                                              int team, int cols, long long ignore_index,
                                              ACC smoothing) {
  const T* xr = x + (long long)row * cols;
  T* gxr = gx + (long long)row * cols;
  const ACC gr = g[row], l = lse[row], wanted = smoothing / cols;
  const long long t = target[row];
  const int shift = behind<N>(xr);
  const bool counts = t != ignore_index, whole = packs(gxr - shift);
  for (int j = N * thread - shift; j < cols; j += N * team) {
    ACC v[N] = {};  // a row that does not count is not read
    if (counts) take<N>(v, xr, j, cols, true);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const ACC rest = j + k == t ? wanted + 1 - smoothing : wanted;
      v[k] = counts ? gr * (exp_below_zero(v[k] - l) - rest) : ACC(0);
    }
    put<N>(gxr, v, j, cols, whole);
  }
}

// v4: a warp shares a row, with 16 bytes in each access. For few classes.
extern "C" __global__ void cross_entropy_backward_v4(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    slopes_of_row<PACK(T)>(gx, g, x, lse, target, row, threadIdx.x % 32, 32, cols, ignore_index,
                           smoothing);
}

// v5: a block shares a row, with 16 bytes in each access.
extern "C" __global__ void cross_entropy_backward_v5(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  slopes_of_row<PACK(T)>(gx, g, x, lse, target, blockIdx.x, threadIdx.x, blockDim.x, cols,
                         ignore_index, smoothing);
}

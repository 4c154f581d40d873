// Cross entropy of classes: softmax, logarithm and selection in one kernel. The probabilities are
// never written to memory.
//
//   lse  = log of the sum of e^x over the row
//   loss = lse - (1 - a) * x[target] - a * mean(x)
//   gx   = g * (e^(x - lse) - a / cols - (1 - a at the target))
//   a      label smoothing. The wanted distribution is a / cols everywhere, plus 1 - a at the
//          target. gx is g times (predicted - wanted distribution)
//
//   x, gx   rows x cols of type T        loss, lse, g   one ACC a row. g: the gradient of loss
//   target  a class for each row. A row whose target is ignore_index does not count: its loss and
//           gx are 0, and x is not read. Its lse is infinite, so that e^(x - lse) is 0 and not inf
//
//   forward    bytes an element in float                 backward
//   v1         2 reads: 8                                all      1 read, 1 write: 8
//   v2 to v5   1 read:  4
//   With smoothing, v1 reads x once more. On a CPU: cpu/cross_entropy.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// A block takes a row of 50257 logits. In v5 each of an SM's 2048 threads has a pack of 16 bytes in
// flight. This is 32 KB, and gives 85% in float: memory brings 4 elements a cycle, and the SM
// computes 16 e^x a cycle, which is just enough. In half memory brings 7.5 elements a cycle, which
// gives 80%. v2 reaches 80% in float. In half v2 requests one element at a time, which gives 50%.
// In backward v5 reaches 85%, and v2 reaches 70%. With 1,000 classes v4 has the shares of v5.
// Wrapper: minidl/ops/cross_entropy.py   Test: tests/ops/test_cross_entropy_kernel.py
//                                          Tutorial: tutorials/03_kernel_tour.py
#include "cross_entropy.cuh"

// v1: a thread per row, in two loops: maximum, then sum.
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

// v2: a block per row, for many classes. Neighbouring threads read neighbouring elements, and one
// loop makes maximum and sum (see softmax.cu, v2). block_max and block_sum join the threads' maxima
// and sums. The barriers are in these two functions (common.cuh).
extern "C" __global__ void cross_entropy_v2(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  __shared__ ACC scratch[33];
  int row = blockIdx.x;
  const T* xr = x + (long long)row * cols;
  if (target[row] == ignore_index) {  // the whole block leaves: no barrier waits
    if (threadIdx.x == 0) loss[row] = 0, lse[row] = INFINITY;
    return;
  }
  ACC mine = -INFINITY, sum = 0, total = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC v = to_float(xr[j]);
    total += v;
    if (v == -INFINITY) continue;  // it adds 0, but -inf - (-inf) would be nan
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

// The loop of v2. Each thread of the team runs the loop over its share of the row, N neighbours at
// a time. A row of 50257 classes may begin at any address. So the packs begin up to one pack before
// the row, and elements outside the row are ignored.
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
    for (int k = 0; k < N; ++k)  // -inf adds 0, but -inf - (-inf) would be nan
      if (v[k] != -INFINITY) sum += exp_below_zero(v[k] - m);
  }
}

// Computes the loss of a row. A team of threads shares the row: a warp, or a block if scratch is
// given. Each element is read once.
template <int N>
__device__ __forceinline__ void loss_of_row(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int row, int thread, int team,
                                            int cols, long long ignore_index, ACC smoothing,
                                            ACC* scratch) {
  const T* xr = x + (long long)row * cols;
  if (target[row] == ignore_index) {  // the whole team leaves: no barrier waits
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

// v3: a warp per row, for few classes. v3 has no barriers. If a row is shorter than a block, no
// threads are idle.
extern "C" __global__ void cross_entropy_v3(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    loss_of_row<1>(loss, lse, x, target, row, threadIdx.x % 32, 32, cols, ignore_index, smoothing,
                   (ACC*)0);
}

// v4: v3 with 16 bytes an access.
extern "C" __global__ void cross_entropy_v4(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    loss_of_row<PACK(T)>(loss, lse, x, target, row, threadIdx.x % 32, 32, cols, ignore_index,
                         smoothing, (ACC*)0);
}

// v5: v2 with 16 bytes an access.
extern "C" __global__ void cross_entropy_v5(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  __shared__ ACC scratch[33];
  loss_of_row<PACK(T)>(loss, lse, x, target, blockIdx.x, threadIdx.x, blockDim.x, cols,
                       ignore_index, smoothing, scratch);
}

// ---- backward: lse is known, so one pass is enough ----

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

// v4: a warp per row, 16 bytes an access, for few classes.
extern "C" __global__ void cross_entropy_backward_v4(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    slopes_of_row<PACK(T)>(gx, g, x, lse, target, row, threadIdx.x % 32, 32, cols, ignore_index,
                           smoothing);
}

// v5: a block per row, 16 bytes an access.
extern "C" __global__ void cross_entropy_backward_v5(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  slopes_of_row<PACK(T)>(gx, g, x, lse, target, blockIdx.x, threadIdx.x, blockDim.x, cols,
                         ignore_index, smoothing);
}

// Layer norm: gives each row mean 0 and variance 1, then applies a scale and a shift for each
// column. With -DCENTERED=0 nothing is subtracted and nothing is added: that is RMS norm.
//
//   xhat = (x - mean) * rstd      rstd = 1 / sqrt(var + eps)      y = xhat * w + b
//   g    = gy * w                 gx = rstd * (g - mean(g) - xhat * mean(g * xhat))
//   gw   = sum over rows of gy * xhat                 gb = sum over rows of gy
//
//   x, y, gy, gx   rows x cols of type T        w, b, gw, gb   cols
//   mean, rstd     one ACC a row, kept for backward
//
//   forward   bytes an element in float     backward
//   v1        3 reads, 1 write: 16          v1   4 reads, 1 write: 20, all gradients
//   v2        2 reads, 1 write: 12          v2   20 for gx, and param_grads 8 for gw and gb
//   v3 to v5  1 read,  1 write:  8          v3 to v5   12 for gx, and param_grads 8
//   On a CPU: cpu/layer_norm.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// In v3 a lane reads KEEP elements before it waits. At 768 columns these are 24 elements, or 96
// bytes in float. An SM has 768 threads (80 registers each), so 72 KB are in flight, which gives 85
// to 90%. In half a request has only 64 bytes, so twice the requests are needed for the same bytes,
// which gives 75 to 80%. v4 makes a quarter of v3's requests in float, and an eighth in half. It
// reaches 85 to 90% in float and in half. v5 reaches 80%, because it waits at its barriers. v2
// reaches 60%: it reads twice, the second time from the L2 cache. param_grads reads 4 or 2 bytes in
// each thread and row: 60% in float, 35% in half. _packs reads 16 bytes, which gives 85%.
//
// Source: Ba, Kiros, Hinton 2016; Zhang & Sennrich 2019 (RMS norm); Welford 1962 and Chan, Golub,
// LeVeque 1983 (variance).
// Wrapper: minidl/ops/layer_norm.py   Test: tests/ops/test_layer_norm_kernel.py
// Tutorial: tutorials/03_kernel_tour.py
#include "common.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif
#ifndef CENTERED
#define CENTERED 1
#endif
#ifndef KEEP  // how many elements of a row a thread of v3, v4 or v5 keeps in registers
#define KEEP 32
#endif

// gw and gb are sums over all rows, and one thread never sees all rows. So the rows are cut into
// n_parts contiguous parts, and the sums of the parts are added eight at a time. The parts depend
// only on the number of rows, not on the number of threads. So the order of additions is always the
// same, and so is every bit of the result. With atomics the order would change from run to run.
// parts: (n_parts, SUMS, cols), the sums for gw, then the sums for gb
const int SUMS = CENTERED ? 2 : 1;

// v1: a thread per row, in three loops: mean, variance, result. It is slow on a GPU, because
// neighbouring threads read addresses that lie a row apart.
extern "C" __global__ void layer_norm_v1(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    T* yr = y + (long long)row * cols;
    ACC sum = 0, squares = 0;
    if (CENTERED) {
      for (int j = 0; j < cols; ++j) sum += to_float(xr[j]);
    }
    ACC m = sum / cols;
    for (int j = 0; j < cols; ++j) {
      ACC d = to_float(xr[j]) - m;
      squares += d * d;
    }
    ACC r = 1 / sqrt(squares / cols + eps);
    for (int j = 0; j < cols; ++j) {
      ACC xhat = (to_float(xr[j]) - m) * r;
      yr[j] = from_float<T>(CENTERED
                            ? xhat * to_float(w[j]) + to_float(b[j]) : xhat * to_float(w[j]));
    }
    if (CENTERED) mean[row] = m;
    rstd[row] = r;
  }
}

// v2: a block per row, in whole warps. Neighbouring threads read neighbouring elements. One loop
// makes mean and variance, so the row is read once less. The sum of x^2 minus the square of the
// mean would lose all digits if the mean is large. So each thread uses Welford's algorithm, and the
// threads' results are joined by the formula of Chan, Golub and LeVeque.
//
// block_sum joins the results. Each call has two barriers, __syncthreads() (common.cuh). The first
// barrier stands before warp 0 reads the numbers that the other warps have written to scratch.
// Without this barrier, warp 0 would add numbers that are not written yet. The second barrier
// stands before all threads read the result. Without it, some threads would use an old result, and
// the row would get two different means.
extern "C" __global__ void layer_norm_v2(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  __shared__ ACC scratch[33];
  int row = blockIdx.x;
  const T* xr = x + (long long)row * cols;
  T* yr = y + (long long)row * cols;
  ACC mine = 0, squares = 0;  // mean of this thread's elements, sum of squares around it
  int n = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC v = to_float(xr[j]), d = v - mine;
    if (CENTERED) mine += d / ++n;
    squares += d * (v - mine);
  }
  ACC m = CENTERED ? block_sum(n * mine, scratch) / cols : ACC(0);
  squares = block_sum(squares + n * (mine - m) * (mine - m), scratch);
  ACC r = 1 / sqrt(squares / cols + eps);
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC xhat = (to_float(xr[j]) - m) * r;
    yr[j] = from_float<T>(CENTERED ? xhat * to_float(w[j]) + to_float(b[j])
                          : xhat * to_float(w[j]));
  }
  if (threadIdx.x == 0) {
    if (CENTERED) mean[row] = m;
    rstd[row] = r;
  }
}

// v3, v4 and v5 keep the row in registers: x is read once. A team of threads shares the row: a
// warp, or a block if scratch is given. Each thread keeps KEEP elements, N neighbours at a time.
template <int N>
__device__ __forceinline__ void layer_norm_kept(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                                const T* b, int row, int thread, int team, int cols,
                                                ACC eps, ACC* scratch) {
  const T* xr = x + (long long)row * cols;
  T* yr = y + (long long)row * cols;
  const bool whole = packs(xr) && packs(yr) && packs(w) && packs(b);
  ACC v[KEEP], sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k += N) take<N>(v + k, xr, column<N>(thread, team, k), cols, whole);
#pragma unroll
  for (int k = 0; k < KEEP; ++k) sum += v[k];
  ACC m = CENTERED ? team_sum(sum, scratch) / cols : ACC(0);
#pragma unroll
  for (int k = 0; k < KEEP; ++k) {
    v[k] -= m;
    if (column<N>(thread, team, k) < cols) squares += v[k] * v[k];
  }
  ACC r = 1 / sqrt(team_sum(squares, scratch) / cols + eps);
#pragma unroll
  for (int k = 0; k < KEEP; k += N) {
    const int j = column<N>(thread, team, k);
    ACC scale[N], shift[N];
    take<N>(scale, w, j, cols, whole);
    if (CENTERED) take<N>(shift, b, j, cols, whole);
#pragma unroll
    for (int i = 0; i < N; ++i)
      v[k + i] = CENTERED ? v[k + i] * r * scale[i] + shift[i] : v[k + i] * r * scale[i];
    put<N>(yr, v + k, j, cols, whole);
  }
  if (thread == 0) {
    if (CENTERED) mean[row] = m;
    rstd[row] = r;
  }
}

// v3: a warp per row. Shuffles make the sums, without barriers. For cols <= 32 * KEEP.
extern "C" __global__ void layer_norm_v3(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    layer_norm_kept<1>(y, mean, rstd, x, w, b, row, threadIdx.x % 32, 32, cols, eps, (ACC*)0);
}

// v4: v3 with 16 bytes an access. Every row must begin at a multiple of 16 bytes.
extern "C" __global__ void layer_norm_v4(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row < rows)  // guard: a whole warp
    layer_norm_kept<PACK(T)>(y, mean, rstd, x, w, b, row, lane, 32, cols, eps, (ACC*)0);
}

// v5: v4 with a block per row, for cols <= blockDim * KEEP. It reads the row once less than v2.
extern "C" __global__ void layer_norm_v5(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  __shared__ ACC scratch[33];
  layer_norm_kept<PACK(T)>(y, mean, rstd, x, w, b, blockIdx.x, threadIdx.x, blockDim.x, cols, eps,
                           scratch);
}

// ---- backward ----

// v1: a thread per part of the rows. It writes gx, and in the same loop adds its rows to gw and gb,
// while x and gy are in the cache.
extern "C" __global__ void layer_norm_backward_v1(T* gx, ACC* parts, const T* gy, const T* x,
                                                  const T* w, const ACC* mean, const ACC* rstd,
                                                  int rows, int cols, int n_parts) {
  int part = blockIdx.x * blockDim.x + threadIdx.x;
  if (part < n_parts) {  // guard
    int begin = (long long)rows * part / n_parts, end = (long long)rows * (part + 1) / n_parts;
    ACC *gw = parts + (long long)part * SUMS * cols, *gb = gw + cols;
    for (int j = 0; j < SUMS * cols; ++j) gw[j] = 0;
    for (int row = begin; row < end; ++row) {
      const T *xr = x + (long long)row * cols, *gyr = gy + (long long)row * cols;
      T* gxr = gx + (long long)row * cols;
      ACC m = CENTERED ? mean[row] : ACC(0), r = rstd[row], sum = 0, along = 0;
      for (int j = 0; j < cols; ++j) {
        ACC xhat = (to_float(xr[j]) - m) * r, gyj = to_float(gyr[j]), g = gyj * to_float(w[j]);
        gw[j] += gyj * xhat;
        if (CENTERED) gb[j] += gyj;
        sum += g;
        along += g * xhat;
      }
      sum = CENTERED ? sum / cols : ACC(0);
      along /= cols;
      for (int j = 0; j < cols; ++j) {
        ACC xhat = (to_float(xr[j]) - m) * r, g = to_float(gyr[j]) * to_float(w[j]);
        gxr[j] = from_float<T>(r * (g - sum - xhat * along));
      }
    }
  }
}

// v2: gx, with a block per row.
extern "C" __global__ void layer_norm_backward_v2(T* gx, const T* gy, const T* x, const T* w,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  __shared__ ACC scratch[33];
  int row = blockIdx.x;
  const T *xr = x + (long long)row * cols, *gyr = gy + (long long)row * cols;
  ACC m = CENTERED ? mean[row] : ACC(0), r = rstd[row], sum = 0, along = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC xhat = (to_float(xr[j]) - m) * r, g = to_float(gyr[j]) * to_float(w[j]);
    sum += g;
    along += g * xhat;
  }
  sum = CENTERED ? block_sum(sum, scratch) / cols : ACC(0);
  along = block_sum(along, scratch) / cols;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) {
    ACC xhat = (to_float(xr[j]) - m) * r, g = to_float(gyr[j]) * to_float(w[j]);
    gx[(long long)row * cols + j] = from_float<T>(r * (g - sum - xhat * along));
  }
}

// Keeps xhat and g in registers: x and gy are read once.
template <int N>
__device__ __forceinline__ void backward_kept(T* gx, const T* gy, const T* x, const T* w,
                                              const ACC* mean, const ACC* rstd, int row, int thread,
                                              int team, int cols, ACC* scratch) {
  const T *xr = x + (long long)row * cols, *gyr = gy + (long long)row * cols;
  T* gxr = gx + (long long)row * cols;
  const bool whole = packs(xr) && packs(gyr) && packs(gxr) && packs(w);
  ACC m = CENTERED ? mean[row] : ACC(0), r = rstd[row], sum = 0, along = 0, xhat[KEEP], g[KEEP];
#pragma unroll
  for (int k = 0; k < KEEP; k += N) {
    const int j = column<N>(thread, team, k);
    ACC scale[N];
    take<N>(xhat + k, xr, j, cols, whole);
    take<N>(g + k, gyr, j, cols, whole);
    take<N>(scale, w, j, cols, whole);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      xhat[k + i] = (xhat[k + i] - m) * r;
      g[k + i] *= scale[i];  // take gives zeros past the end of the row
      sum += g[k + i];
      along += g[k + i] * xhat[k + i];
    }
  }
  sum = CENTERED ? team_sum(sum, scratch) / cols : ACC(0);
  along = team_sum(along, scratch) / cols;
#pragma unroll
  for (int k = 0; k < KEEP; ++k) g[k] = r * (g[k] - sum - xhat[k] * along);
#pragma unroll
  for (int k = 0; k < KEEP; k += N) put<N>(gxr, g + k, column<N>(thread, team, k), cols, whole);
}

// v3: a warp per row, for cols <= 32 * KEEP.
extern "C" __global__ void layer_norm_backward_v3(T* gx, const T* gy, const T* x, const T* w,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    backward_kept<1>(gx, gy, x, w, mean, rstd, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v4: v3 with 16 bytes an access.
extern "C" __global__ void layer_norm_backward_v4(T* gx, const T* gy, const T* x, const T* w,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    backward_kept<PACK(T)>(gx, gy, x, w, mean, rstd, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v5: v4 with a block per row, for cols <= blockDim * KEEP.
extern "C" __global__ void layer_norm_backward_v5(T* gx, const T* gy, const T* x, const T* w,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  __shared__ ACC scratch[33];
  backward_kept<PACK(T)>(gx, gy, x, w, mean, rstd, blockIdx.x, threadIdx.x, blockDim.x, cols,
                         scratch);
}

// The parts of gw and gb, for v2 to v5. A thread takes N columns. A row of blocks takes one part.
// Neighbouring threads read neighbouring columns.
template <int N>
__device__ __forceinline__ void add_rows(ACC* parts, const T* gy, const T* x, const ACC* mean,
                                         const ACC* rstd, int j, int rows, int cols) {
  const int part = blockIdx.y, n_parts = gridDim.y;
  const int begin = (long long)rows * part / n_parts, end = (long long)rows * (part + 1) / n_parts;
  const bool whole = packs(gy, cols) && packs(x, cols) && packs(parts, cols);
  ACC gw[N] = {0}, gb[N] = {0};
  for (int row = begin; row < end; ++row) {
    ACC g[N], v[N], m = CENTERED ? mean[row] : ACC(0), r = rstd[row];
    take<N>(g, gy + (long long)row * cols, j, cols, whole);
    take<N>(v, x + (long long)row * cols, j, cols, whole);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      gw[i] += g[i] * ((v[i] - m) * r);
      gb[i] += g[i];
    }
  }
  put<N>(parts + (long long)part * SUMS * cols, gw, j, cols, whole);
  if (CENTERED) put<N>(parts + ((long long)part * SUMS + 1) * cols, gb, j, cols, whole);
}

extern "C" __global__ void layer_norm_param_grads(ACC* parts, const T* gy, const T* x,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j < cols)  // guard
    add_rows<1>(parts, gy, x, mean, rstd, j, rows, cols);
}

extern "C" __global__ void layer_norm_param_grads_packs(ACC* parts, const T* gy, const T* x,
                                                        const ACC* mean, const ACC* rstd, int rows,
                                                        int cols) {
  int j = PACK(T) * (blockIdx.x * blockDim.x + threadIdx.x);
  if (j < cols)  // guard
    add_rows<PACK(T)>(parts, gy, x, mean, rstd, j, rows, cols);
}

// Adds eight parts of n sums each, one thread per sum. The kernel is called once for 8 parts, and
// twice for 64 parts.
extern "C" __global__ void layer_norm_add_eight(ACC* out, const ACC* parts, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {  // guard
    ACC sum = 0;
    for (int k = 0; k < 8; ++k) sum += parts[i + (long long)k * n];
    out[i] = sum;
  }
}

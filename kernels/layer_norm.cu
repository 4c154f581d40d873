// Layer norm: gives each row mean 0 and variance 1, then applies a scale and a shift for each
// column. With -DCENTERED=0 the mean is not subtracted and the shift is not added: this is RMS
// norm.
//
//   xhat = (x - mean) * rstd      rstd = 1 / sqrt(var + eps)      y = xhat * w + b
//   g    = gy * w                 gx = rstd * (g - mean(g) - xhat * mean(g * xhat))
//   gw   = sum over rows of gy * xhat                 gb = sum over rows of gy
//
//   x, y, gy, gx   rows x cols of type T        w, b, gw, gb   cols numbers
//   mean, rstd     a number of type ACC for each row, kept for backward
//
// Bytes that are moved for each element of x, in float. A read or a write of a number is 4 bytes:
//   forward    v1         x 3 times, y once: 16
//              v2         x twice, y once:   12
//              v3 to v5   x once, y once:     8
//   backward   v1         gy and x twice, gx once: 20, for all gradients
//              v2         20 for gx, and 8 more in param_grads for gw and gb
//              v3 to v5   12 for gx, and 8 more in param_grads for gw and gb
//   On a CPU: cpu/layer_norm.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// v3 reaches 85 to 90% in float: a lane reads all its elements before it waits. In rows of 768
// columns these are 24 elements, or 96 bytes. An SM has room for 768 threads of 80 registers, so 72
// KB are in flight. In half v3 reaches 75 to 80%, because one request of a warp has only 64 bytes.
// So it needs twice as many requests for the same bytes. v4 makes a quarter of v3's requests in
// float, and an eighth in half. It reaches 85 to 90% in float and in half. v5 reaches 80%, because
// it waits at its barriers. v2 reaches 60%, because it reads x a second time, from the L2 cache.
// param_grads reaches 60% in float and 35% in half, because a thread reads one element at a time.
// param_grads_packs reads 16 bytes at a time, which gives 85%.
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

// gw and gb are sums over all rows, but no thread reads all rows. So the rows are cut into n_parts
// contiguous parts. A thread sums over the rows of one part. Then the sums of the parts are added,
// eight at a time. The parts depend only on the number of rows. So the order of additions is always
// the same, and every run gives the same bits. With atomics the order changes from run to run.
// parts: (n_parts, SUMS, cols). For each part it has the sums for gw, then the sums for gb.
const int SUMS = CENTERED ? 2 : 1;

// v1: one thread computes a row, in three loops: mean, variance, result. It is slow on a GPU,
// because the 32 threads of a warp read from 32 rows at once.
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

// v2: a block shares a row. The block has a multiple of 32 threads. Neighbouring threads read
// neighbouring elements. One loop computes both mean and variance, so x is read twice and not three
// times. The simple formula, mean of x^2 minus square of the mean, loses all digits if the mean is
// large. So each thread uses Welford's algorithm for its own elements. The formula of Chan, Golub
// and LeVeque joins the threads' results.
//
// block_sum adds the numbers of all threads. Each call has two barriers, __syncthreads()
// (common.cuh). The first barrier stands before warp 0 reads the numbers that the other warps have
// written to scratch. Without this barrier, warp 0 adds numbers that are not written yet. The
// second barrier stands before all threads read the result. Without it, some threads use an old
// value in place of the result. Then the threads of a row use different means.
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

// The common code of v3, v4 and v5. It keeps the row in registers, so x is read once. A team of
// threads shares the row: a warp if scratch is null, else a block. A thread keeps up to KEEP
// elements. It takes N neighbours in one access.
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

// v3: a warp shares a row, for cols <= 32 * KEEP. Shuffles make the sums, without barriers.
extern "C" __global__ void layer_norm_v3(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    layer_norm_kept<1>(y, mean, rstd, x, w, b, row, threadIdx.x % 32, 32, cols, eps, (ACC*)0);
}

// v4: as v3, with 16 bytes in each access. If a row does not begin at a multiple of 16 bytes, its
// elements are read and written one by one.
extern "C" __global__ void layer_norm_v4(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row < rows)  // guard: a whole warp
    layer_norm_kept<PACK(T)>(y, mean, rstd, x, w, b, row, lane, 32, cols, eps, (ACC*)0);
}

// v5: as v4, but a block shares a row, for cols <= blockDim * KEEP. v5 reads x once, v2 reads it
// twice.
extern "C" __global__ void layer_norm_v5(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  __shared__ ACC scratch[33];
  layer_norm_kept<PACK(T)>(y, mean, rstd, x, w, b, blockIdx.x, threadIdx.x, blockDim.x, cols, eps,
                           scratch);
}

// ---- backward ----

// v1: a thread computes one part of the rows. It writes gx. In the same loop it adds its rows to gw
// and gb, while x and gy are in the cache.
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

// v2: gx. A block shares a row.
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

// The common code of v3, v4 and v5. It keeps xhat and g in registers, so x and gy are read once.
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

// v3: a warp shares a row, for cols <= 32 * KEEP.
extern "C" __global__ void layer_norm_backward_v3(T* gx, const T* gy, const T* x, const T* w,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    backward_kept<1>(gx, gy, x, w, mean, rstd, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v4: as v3, with 16 bytes in each access.
extern "C" __global__ void layer_norm_backward_v4(T* gx, const T* gy, const T* x, const T* w,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows)  // guard: a whole warp
    backward_kept<PACK(T)>(gx, gy, x, w, mean, rstd, row, threadIdx.x % 32, 32, cols, (ACC*)0);
}

// v5: as v4, but a block shares a row, for cols <= blockDim * KEEP.
extern "C" __global__ void layer_norm_backward_v5(T* gx, const T* gy, const T* x, const T* w,
                                                  const ACC* mean, const ACC* rstd, int rows,
                                                  int cols) {
  __shared__ ACC scratch[33];
  backward_kept<PACK(T)>(gx, gy, x, w, mean, rstd, blockIdx.x, threadIdx.x, blockDim.x, cols,
                         scratch);
}

// Computes the parts of gw and gb, for v2 to v5. A thread takes N columns of one part of the rows.
// blockIdx.y is the number of the part. Neighbouring threads read neighbouring columns.
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

// Adds eight parts of n sums each. A thread computes one of the n results. For 8 parts the kernel
// is launched once, for 64 parts twice.
extern "C" __global__ void layer_norm_add_eight(ACC* out, const ACC* parts, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {  // guard
    ACC sum = 0;
    for (int k = 0; k < 8; ++k) sum += parts[i + (long long)k * n];
    out[i] = sum;
  }
}

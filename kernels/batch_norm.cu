// Batch norm: gives each channel of a batch mean 0 and variance 1, then applies its scale and
// shift.
//
//   xhat = (x - mean) * rstd      rstd = 1 / sqrt(var + eps)      y = xhat * w + b
//   gb   = sum of gy              gw   = sum of gy * xhat
//   gx   = w * rstd * (gy - gb / n - xhat * gw / n)               n = samples * places
//
//   x, y, gy, gx      samples x channels x places of type T
//   mean, var, rstd   a number of type ACC for each channel. Backward needs mean, rstd and x
//   w, b, gw, gb      a number of type ACC for each channel
//
// A sample stores its channels one after the other. A channel has `places` neighbouring numbers,
// which are called a plane. Forward does not store xhat, because backward can compute it from x. In
// eval mode mean and rstd are given and do not depend on x, so gx = w * rstd * gy.
//
// Bytes that are moved for each element of x, in float. A read or a write of a number is 4 bytes:
//   forward   v1     x 3 times, y once: 16     backward   v1, v2   x and gy twice, gx once: 20
//             v2     x twice, y once:   12
//             eval   x once, y once:     8
//   On a CPU: cpu/batch_norm.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// eval reaches 50% in float and 25% in half (float16), because each thread reads one element. v2
// reaches 25% in float, because a thread waits for each read before it starts the next. For this
// share the number of channels must be at least the number of SMs. With 64 channels, 68 of an
// H100's 132 SMs have no work. If places is not a multiple of 8, a warp reads one more cache line
// in every plane. v1 stays below 5%, because the 32 lanes of a warp read from 32 planes. The warp
// fetches 32 cache lines and uses 4 bytes of each.
//
// Source: Ioffe & Szegedy 2015; Welford 1962 and Chan, Golub, LeVeque 1983 (variance).
// Wrapper: minidl/ops/batch_norm.py   Test: tests/ops/test_batch_norm_kernel.py
#include "common.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif

// Returns the position in x of number k of channel c. A channel has samples * places numbers.
__device__ __forceinline__ long long place(int k, int c, int channels, int places) {
  return ((long long)(k / places) * channels + c) * places + k % places;
}

// v1: one thread computes a channel, in three loops: mean, variance, result.
extern "C" __global__ void batch_norm_v1(T* y, ACC* mean, ACC* var, ACC* rstd, const T* x,
                                         const ACC* w, const ACC* b, int samples, int channels,
                                         int places, ACC eps) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < channels) {  // guard
    const int n = samples * places;
    ACC sum = 0, squares = 0;
    for (int k = 0; k < n; ++k) sum += to_float(x[place(k, c, channels, places)]);
    const ACC m = sum / n;
    for (int k = 0; k < n; ++k) {
      ACC d = to_float(x[place(k, c, channels, places)]) - m;
      squares += d * d;
    }
    const ACC v = squares / n, r = 1 / sqrt(v + eps);
    for (int k = 0; k < n; ++k) {
      const long long at = place(k, c, channels, places);
      y[at] = from_float<T>((to_float(x[at]) - m) * r * w[c] + b[c]);
    }
    mean[c] = m, var[c] = v, rstd[c] = r;
  }
}

// v2: a block computes a channel. The block has a multiple of 32 threads. Neighbouring threads read
// neighbouring elements. One loop computes both mean and variance. For this, each thread uses
// Welford's algorithm. The formula of Chan, Golub and LeVeque joins the threads' results. The
// comment before layer_norm_v2 in layer_norm.cu explains the method and the barriers.
extern "C" __global__ void batch_norm_v2(T* y, ACC* mean, ACC* var, ACC* rstd, const T* x,
                                         const ACC* w, const ACC* b, int samples, int channels,
                                         int places, ACC eps) {
  __shared__ ACC scratch[33];
  const int c = blockIdx.x, n = samples * places;
  ACC mine = 0, squares = 0;  // mean of this thread's elements, and sum of squares around the mean
  int n_mine = 0;
  for (int k = threadIdx.x; k < n; k += blockDim.x) {
    ACC v = to_float(x[place(k, c, channels, places)]), d = v - mine;
    mine += d / ++n_mine;
    squares += d * (v - mine);
  }
  const ACC m = block_sum(n_mine * mine, scratch) / n;
  const ACC v = block_sum(squares + n_mine * (mine - m) * (mine - m), scratch) / n;
  const ACC r = 1 / sqrt(v + eps), scale = r * w[c], shift = b[c];
  for (int k = threadIdx.x; k < n; k += blockDim.x) {
    const long long at = place(k, c, channels, places);
    y[at] = from_float<T>((to_float(x[at]) - m) * scale + shift);
  }
  if (threadIdx.x == 0) mean[c] = m, var[c] = v, rstd[c] = r;
}

// eval: mean and rstd are given. Each thread computes one of the n elements.
extern "C" __global__ void batch_norm_eval(T* y, const T* x, const ACC* w, const ACC* b,
                                           const ACC* mean, const ACC* rstd, int n, int channels,
                                           int places) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {  // guard
    const int c = i / places % channels;
    y[i] = from_float<T>((to_float(x[i]) - mean[c]) * rstd[c] * w[c] + b[c]);
  }
}

// ---- backward ----

// v1: one thread computes a channel. training: 1 if mean and rstd were computed from this x, else
// 0.
extern "C" __global__ void batch_norm_backward_v1(T* gx, ACC* gw, ACC* gb, const T* gy, const T* x,
                                                  const ACC* w, const ACC* mean, const ACC* rstd,
                                                  int samples, int channels, int places,
                                                  int training) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < channels) {  // guard
    const int n = samples * places;
    const ACC m = mean[c], r = rstd[c], scale = w[c] * r;
    ACC sum = 0, along = 0;
    for (int k = 0; k < n; ++k) {
      const long long at = place(k, c, channels, places);
      ACC g = to_float(gy[at]);
      sum += g;
      along += g * ((to_float(x[at]) - m) * r);
    }
    gw[c] = along, gb[c] = sum;
    for (int k = 0; k < n; ++k) {
      const long long at = place(k, c, channels, places);
      ACC g = to_float(gy[at]), xhat = (to_float(x[at]) - m) * r;
      gx[at] = from_float<T>(scale * (training ? g - sum / n - xhat * (along / n) : g));
    }
  }
}

// v2: a block computes a channel.
extern "C" __global__ void batch_norm_backward_v2(T* gx, ACC* gw, ACC* gb, const T* gy, const T* x,
                                                  const ACC* w, const ACC* mean, const ACC* rstd,
                                                  int samples, int channels, int places,
                                                  int training) {
  __shared__ ACC scratch[33];
  const int c = blockIdx.x, n = samples * places;
  const ACC m = mean[c], r = rstd[c], scale = w[c] * r;
  ACC sum = 0, along = 0;
  for (int k = threadIdx.x; k < n; k += blockDim.x) {
    const long long at = place(k, c, channels, places);
    ACC g = to_float(gy[at]);
    sum += g;
    along += g * ((to_float(x[at]) - m) * r);
  }
  sum = block_sum(sum, scratch);
  along = block_sum(along, scratch);
  if (threadIdx.x == 0) gw[c] = along, gb[c] = sum;
  sum = training ? sum / n : ACC(0);
  along = training ? along / n : ACC(0);
  for (int k = threadIdx.x; k < n; k += blockDim.x) {
    const long long at = place(k, c, channels, places);
    ACC g = to_float(gy[at]), xhat = (to_float(x[at]) - m) * r;
    gx[at] = from_float<T>(scale * (g - sum - xhat * along));
  }
}

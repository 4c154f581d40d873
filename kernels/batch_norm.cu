// Batch norm: gives each channel of a batch mean 0 and variance 1, then applies its scale and
// shift.
//
//   xhat = (x - mean) * rstd      rstd = 1 / sqrt(var + eps)      y = xhat * w + b
//   gb   = sum of gy              gw   = sum of gy * xhat
//   gx   = w * rstd * (gy - gb / n - xhat * gw / n)               n = samples * places
//
//   x, y, gy, gx      samples x channels x places of type T
//   mean, var, rstd   a number of type ACC for each channel. mean, rstd and x are kept for backward
//   w, b, gw, gb      a number of type ACC for each channel
//
// In each sample a channel has `places` neighbouring numbers, which are called a plane. The planes
// of the other channels lie before and after it. Forward does not store xhat, because backward can
// compute it from x, and the layer before has often kept x already. If the statistics are given
// (eval), mean and rstd do not depend on x, and gx = w * rstd * gy.
//
//   forward   bytes an element in float     backward
//   v1        3 reads, 1 write: 16          v1   4 reads, 1 write: 20
//   v2        2 reads, 1 write: 12          v2   the same
//   eval      1 read,  1 write:  8
//   On a CPU: cpu/batch_norm.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// eval reaches 50% in float and 25% in half (float16), because each thread reads one element. v2
// reaches 25% in float if there is at least one channel for each SM, because a block waits for one
// read after another. With 64 channels, 68 of an H100's 132 SMs have no work. If places is not a
// multiple of 8, a warp's request touches one more cache line in every plane. v1 stays below 5%: 32
// lanes read from 32 planes, so a warp fetches 32 cache lines for 128 bytes.
//
// Source: Ioffe & Szegedy 2015; Welford 1962 and Chan, Golub, LeVeque 1983 (variance).
// Wrapper: minidl/ops/batch_norm.py   Test: tests/ops/test_batch_norm_kernel.py
#include "common.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif

// Returns the position in x of number k of channel c.
__device__ __forceinline__ long long place(int k, int c, int channels, int places) {
  return ((long long)(k / places) * channels + c) * places + k % places;
}

// v1: a thread per channel, in three loops: mean, variance, result.
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

// v2: a block per channel, in whole warps. Neighbouring threads read neighbouring elements. One
// loop makes mean and variance: each thread uses Welford's algorithm, and the threads' results are
// joined by the formula of Chan, Golub and LeVeque. The comment at v2 of layer_norm.cu explains
// why, and what the barriers are for.
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

// eval: the statistics are given. A thread per element, n elements.
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

// v1: a thread per channel. training: 1 if mean and rstd were computed from this x.
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

// v2: a block per channel.
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

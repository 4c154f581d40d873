// Batch norm on a CPU, in vectors. It computes the same as v1 of ../batch_norm.cu, but reads memory
// in another order. In v1 a loop over one channel jumps from sample to sample. In this file each
// pass goes through the batch from one end to the other, so the core's prefetcher can follow it.
// A pass keeps only a few numbers for each channel.
//
//              channels
//     samples  |plane|plane|plane|...|     sums     of each plane. Forward: the mean m, and the sum
//              |plane|plane|plane|...|              of (x - m)^2. Backward: the sum of gy, and the
//              |plane|plane|plane|...|              sum of gy (x - mean)
//                                          join     makes the sums of a channel from the sums of
//                                                   its planes
//                                          write    writes y or gx
//
// A channel's variance is the sum of two parts. One part has the squared distances of the numbers
// from the mean of their plane. The other part has the squared distances of these means from the
// channel's mean. No large numbers are subtracted, so the variance is as exact as with two passes
// over memory. The kernel reads a plane in two loops, but the second loop reads it from the cache.
//
// A plane with few places does not fill a vector. Then a thread takes a row of neighbouring planes,
// in several samples. Each lane adds the numbers of one column. At the end the thread adds the
// lanes of each channel:
//
//     sample 0  |plane|plane|plane|..|     `width` planes, together at most LANES_MAX numbers;
//     sample 1  |plane|plane|plane|..|     `group` samples
//                || | | | | |
//                lanes
//
// Bytes that are moved for each element of x, in float:
//   forward    12: x is read twice, y is written            eval mode    8
//   backward   20: gy and x are read twice, gx is written
//
// Formulas, parameters and the ladder for a GPU: ../batch_norm.cu
// Source: Chan, Golub, LeVeque 1983 (variance of parts).
// Wrapper: minidl/ops/batch_norm.py   Test: tests/ops/test_batch_norm_kernel.py
#include "loops.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif

const int LANES_MAX = 512;  // the same number as in the wrapper
const int PIECE = 4096;      // how many numbers are added before their sum is added to a double

// ---- sums of planes ----

// Writes parts (2, samples, channels): the mean m of each plane, and the sum of its (x - m)^2. A
// thread computes one plane.
extern "C" __global__ void batch_norm_planes(ACC* parts, const T* x, int samples, int channels,
                                             int places) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < samples * channels) {  // guard
    const T* xp = x + (long long)plane * places;
    double total = 0, squares = 0;
    for (int j0 = 0; j0 < places; j0 += PIECE) {
      const int end = min(j0 + PIECE, places);
      ACC sum = 0;
      SIMD_SUM(sum)
      for (int j = j0; j < end; ++j) sum += to_float(xp[j]);
      total += sum;
    }
    const ACC m = total / places;
    for (int j0 = 0; j0 < places; j0 += PIECE) {
      const int end = min(j0 + PIECE, places);
      ACC sum = 0;
      SIMD_SUM(sum)
      for (int j = j0; j < end; ++j) {
        ACC d = to_float(xp[j]) - m;
        sum += d * d;
      }
      squares += sum;
    }
    parts[plane] = m, parts[samples * channels + plane] = squares;
  }
}

// Writes parts (2, samples, channels): for each plane the sum of gy, and the sum of gy * (x -
// mean).
extern "C" __global__ void batch_norm_backward_planes(ACC* parts, const T* gy, const T* x,
                                                      const ACC* mean, int samples,
                                                      int channels, int places) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < samples * channels) {  // guard
    const T *gyp = gy + (long long)plane * places, *xp = x + (long long)plane * places;
    const ACC m = mean[plane % channels];
    double total = 0, total_along = 0;
    for (int j0 = 0; j0 < places; j0 += PIECE) {
      const int end = min(j0 + PIECE, places);
      ACC sum = 0, along = 0;
      SIMD_SUM(sum, along)
      for (int j = j0; j < end; ++j) {
        ACC g = to_float(gyp[j]);
        sum += g;
        along += g * (to_float(xp[j]) - m);
      }
      total += sum, total_along += along;
    }
    parts[plane] = total, parts[samples * channels + plane] = total_along;
  }
}

// ---- sums of planes with few places: parts (2, groups of samples, channels) ----

// out[c] = the sum of the n lanes of channel c
__forceinline__ void add_lanes(ACC* out, const ACC* lanes, int width, int n) {
  for (int c = 0; c < width; ++c) {
    ACC sum = 0;
    SIMD_SUM(sum)
    for (int j = 0; j < n; ++j) sum += lanes[c * n + j];
    out[c] = sum;
  }
}

// lanes[j] = number[c], if lane j belongs to channel c
__forceinline__ void spread(ACC* lanes, const ACC* number, int width, int n) {
  for (int c = 0; c < width; ++c)
    for (int j = 0; j < n; ++j) lanes[c * n + j] = number[c];
}

// grid (ceil(channels / width), ceil(samples / group)), block 1
extern "C" __global__ void batch_norm_rows(ACC* parts, const T* x, int samples, int channels,
                                           int places, int width, int group) {
  const int first = blockIdx.x * width, n = min(width, channels - first), row = n * places;
  const int begin = blockIdx.y * group, end = min(begin + group, samples);
  const long long step = (long long)channels * places;
  x += (long long)first * places;
  ACC *means = parts + (long long)blockIdx.y * channels + first;
  ACC* squares = means + (long long)gridDim.y * channels;
  ACC lanes[LANES_MAX], middle[LANES_MAX];
  for (int j = 0; j < row; ++j) lanes[j] = 0;
  for (int i = begin; i < end; ++i) {
    const T* xi = x + i * step;
    SIMD
    for (int j = 0; j < row; ++j) lanes[j] += to_float(xi[j]);
  }
  add_lanes(means, lanes, n, places);
  for (int c = 0; c < n; ++c) means[c] /= (end - begin) * places;
  spread(middle, means, n, places);
  for (int j = 0; j < row; ++j) lanes[j] = 0;
  for (int i = begin; i < end; ++i) {
    const T* xi = x + i * step;
    SIMD
    for (int j = 0; j < row; ++j) {
      ACC d = to_float(xi[j]) - middle[j];
      lanes[j] += d * d;
    }
  }
  add_lanes(squares, lanes, n, places);
}

extern "C" __global__ void batch_norm_backward_rows(ACC* parts, const T* gy, const T* x,
                                                    const ACC* mean, int samples, int channels,
                                                    int places, int width, int group) {
  const int first = blockIdx.x * width, n = min(width, channels - first), row = n * places;
  const int begin = blockIdx.y * group, end = min(begin + group, samples);
  const long long step = (long long)channels * places, at = (long long)first * places;
  ACC *out = parts + (long long)blockIdx.y * channels + first;
  ACC sums[LANES_MAX], along[LANES_MAX], middle[LANES_MAX];
  spread(middle, mean + first, n, places);
  for (int j = 0; j < row; ++j) sums[j] = along[j] = 0;
  for (int i = begin; i < end; ++i) {
    const T *gyi = gy + at + i * step, *xi = x + at + i * step;
    SIMD
    for (int j = 0; j < row; ++j) {
      ACC g = to_float(gyi[j]);
      sums[j] += g;
      along[j] += g * (to_float(xi[j]) - middle[j]);
    }
  }
  add_lanes(out, sums, n, places);
  add_lanes(out + (long long)gridDim.y * channels, along, n, places);
}

// ---- join ----

// The number of channels of one thread. grid ceil(channels / CHANNELS), block 1.
const int CHANNELS = 64;

// n: the number of elements of a channel. size: the number of elements of a part. The last part may
// have fewer.
extern "C" __global__ void batch_norm_join(ACC* mean, ACC* var, ACC* rstd, const ACC* parts,
                                           int n_parts, int channels, int size, int n, ACC eps) {
  const int first = blockIdx.x * CHANNELS, width = min(CHANNELS, channels - first);
  const ACC* squares = parts + (long long)n_parts * channels;
  double m[CHANNELS], around[CHANNELS];
  for (int c = 0; c < width; ++c) m[c] = around[c] = 0;
  for (int k = 0; k < n_parts; ++k) {
    const double share = (double)min(size, n - k * size) / n;
    const ACC* part = parts + (long long)k * channels + first;
    SIMD
    for (int c = 0; c < width; ++c) m[c] += share * part[c];
  }
  for (int k = 0; k < n_parts; ++k) {
    const double weight = min(size, n - k * size);
    const long long at = (long long)k * channels + first;
    SIMD
    for (int c = 0; c < width; ++c) {
      const double d = parts[at + c] - m[c];
      around[c] += squares[at + c] + weight * d * d;
    }
  }
  for (int c = 0; c < width; ++c) {
    const ACC v = around[c] / n;
    mean[first + c] = m[c], var[first + c] = v, rstd[first + c] = 1 / sqrt(v + eps);
  }
}

extern "C" __global__ void batch_norm_backward_join(ACC* gw, ACC* gb, const ACC* parts,
                                                    const ACC* rstd, int n_parts, int channels) {
  const int first = blockIdx.x * CHANNELS, width = min(CHANNELS, channels - first);
  const ACC* along = parts + (long long)n_parts * channels;
  double w[CHANNELS], b[CHANNELS];
  for (int c = 0; c < width; ++c) w[c] = b[c] = 0;
  for (int k = 0; k < n_parts; ++k) {
    const long long at = (long long)k * channels + first;
    SIMD
    for (int c = 0; c < width; ++c) {
      b[c] += parts[at + c];
      w[c] += along[at + c];
    }
  }
  for (int c = 0; c < width; ++c) gw[first + c] = w[c] * rstd[first + c], gb[first + c] = b[c];
}

// ---- write ----

extern "C" __global__ void batch_norm_write_planes(T* y, const T* x, const ACC* w, const ACC* b,
                                                   const ACC* mean, const ACC* rstd, int samples,
                                                   int channels, int places) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < samples * channels) {  // guard
    const int c = plane % channels;
    const ACC m = mean[c], scale = rstd[c] * w[c], shift = b[c];
    const T* xp = x + (long long)plane * places;
    T* yp = y + (long long)plane * places;
    SIMD
    for (int j = 0; j < places; ++j) yp[j] = from_float<T>((to_float(xp[j]) - m) * scale + shift);
  }
}

extern "C" __global__ void batch_norm_write_rows(T* y, const T* x, const ACC* w, const ACC* b,
                                                 const ACC* mean, const ACC* rstd, int samples,
                                                 int channels, int places, int width, int group) {
  const int first = blockIdx.x * width, n = min(width, channels - first), row = n * places;
  const int begin = blockIdx.y * group, end = min(begin + group, samples);
  const long long step = (long long)channels * places, at = (long long)first * places;
  ACC middle[LANES_MAX], scale[LANES_MAX], shift[LANES_MAX], scales[LANES_MAX];
  for (int c = 0; c < n; ++c) scales[c] = rstd[first + c] * w[first + c];
  spread(middle, mean + first, n, places);
  spread(scale, scales, n, places);
  spread(shift, b + first, n, places);
  for (int i = begin; i < end; ++i) {
    const T* xi = x + at + i * step;
    T* yi = y + at + i * step;
    SIMD
    for (int j = 0; j < row; ++j)
      yi[j] = from_float<T>((to_float(xi[j]) - middle[j]) * scale[j] + shift[j]);
  }
}

// training: 1 if mean and rstd were computed from this x, else 0.
extern "C" __global__ void batch_norm_backward_write_planes(
    T* gx, const ACC* gw, const ACC* gb, const T* gy, const T* x, const ACC* w, const ACC* mean,
    const ACC* rstd, int samples, int channels, int places, int training) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < samples * channels) {  // guard
    const int c = plane % channels;
    const ACC n = (ACC)samples * places;
    const ACC m = mean[c], scale = rstd[c] * w[c];
    const ACC shift = training ? gb[c] / n : ACC(0);
    const ACC slope = training ? gw[c] * rstd[c] / n : ACC(0);
    const T *gyp = gy + (long long)plane * places, *xp = x + (long long)plane * places;
    T* gxp = gx + (long long)plane * places;
    SIMD
    for (int j = 0; j < places; ++j)
      gxp[j] = from_float<T>(scale * (to_float(gyp[j]) - shift - (to_float(xp[j]) - m) * slope));
  }
}

extern "C" __global__ void batch_norm_backward_write_rows(
    T* gx, const ACC* gw, const ACC* gb, const T* gy, const T* x, const ACC* w, const ACC* mean,
    const ACC* rstd, int samples, int channels, int places, int training, int width, int group) {
  const int first = blockIdx.x * width, here = min(width, channels - first), row = here * places;
  const int begin = blockIdx.y * group, end = min(begin + group, samples);
  const long long step = (long long)channels * places, at = (long long)first * places;
  ACC middle[LANES_MAX], scale[LANES_MAX], shift[LANES_MAX], slope[LANES_MAX];
  ACC scales[LANES_MAX], shifts[LANES_MAX], slopes[LANES_MAX];
  const ACC n = (ACC)samples * places;
  for (int c = 0; c < here; ++c) {
    const ACC r = rstd[first + c];
    scales[c] = r * w[first + c];
    shifts[c] = training ? gb[first + c] / n : ACC(0);
    slopes[c] = training ? gw[first + c] * r / n : ACC(0);
  }
  spread(middle, mean + first, here, places);
  spread(scale, scales, here, places);
  spread(shift, shifts, here, places);
  spread(slope, slopes, here, places);
  for (int i = begin; i < end; ++i) {
    const T *gyi = gy + at + i * step, *xi = x + at + i * step;
    T* gxi = gx + at + i * step;
    SIMD
    for (int j = 0; j < row; ++j)
      gxi[j] = from_float<T>(
          scale[j] * (to_float(gyi[j]) - shift[j] - (to_float(xi[j]) - middle[j]) * slope[j]));
  }
}

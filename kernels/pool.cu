// Pooling: computes one number from each window of an image, the largest number or the mean.
//
//   max_pool            y = the largest x of the window. winner = its place in the window,
//                       i * kw + j. The first of equal numbers wins. A nan always wins
//   max_pool_backward   gx = the sum of gy over the windows that this x has won
//   avg_pool            y = (sum of x over the window) / divisor of the window
//   avg_pool_backward   gx = the sum of gy / divisor over the windows that contain this x
//
//   x, gx     planes x h x w of type T             winner    planes x oh x ow, of type INDEX
//   y, gy     planes x oh x ow of type T           divisor   oh x ow, of type ACC
//   Element (i, j) of window (r, q) is x at row r * sh + i * dh - top, column q * sw + j * dw -
//   left. An element outside of x does not count.
//
// In forward a thread computes one output. In backward a thread computes one element of gx. It
// looks for the windows that contain the element, and adds their gy. So no two threads add to the
// same number, and the order of the sum is always the same.
//
//   bytes that are moved in float, for windows of     for each       for each
//   2 x 2 without overlap                             element of x   element of y
//   max_pool            reads x, writes y, winner         4              5
//   max_pool_backward   reads gy, winner, writes gx       4              5
//   avg_pool            reads x, writes y                 4              4
//   avg_pool_backward   reads gy, writes gx               4              4
//   On a CPU: cpu/pool.cu
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// For windows without overlap, the kernels reach 50% in float and 25% in half, like every kernel
// that reads one element at a time. If windows overlap, some elements are read again, from the L1
// cache. A warp reads 4 bytes in each lane, which is half of the bytes that L1 can deliver in a
// cycle. The six integer divisions of a thread take about as long as its reads.
//
// Wrapper: minidl/ops/pool.py   Test: tests/ops/test_pool_kernel.py
#include "common.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif
#ifndef INDEX  // unsigned char for windows of at most 256 elements, else int
#define INDEX unsigned char
#endif

extern "C" __global__ void max_pool(T* y, INDEX* winner, const T* x, int n, int h, int w, int oh,
                                    int ow, int kh, int kw, int sh, int sw, int top, int left,
                                    int dh, int dw) {
  int o = blockIdx.x * blockDim.x + threadIdx.x;
  if (o < n) {  // guard
    const int q = o % ow, r = o / ow % oh;
    const T* xp = x + (long long)(o / ow / oh) * h * w;
    ACC best = -INFINITY;
    int at = -1;
    for (int i = 0; i < kh; ++i)
      for (int j = 0; j < kw; ++j) {
        const int row = r * sh + i * dh - top, column = q * sw + j * dw - left;
        if (row < 0 || row >= h || column < 0 || column >= w) continue;
        const ACC v = to_float(xp[row * w + column]);
        if (at < 0 || v > best || v != v) best = v, at = i * kw + j;
      }
    y[o] = from_float<T>(best);
    winner[o] = at < 0 ? 0 : at;  // -1: the window has only padding
  }
}

// Returns the r for which element i of window r is at place p: r * s + i * d - pad == p. Returns -1
// if there is no such window. r, p and i belong to one dimension, which has n windows.
__device__ __forceinline__ int window_of(int p, int i, int s, int d, int pad, int n) {
  const int from = p + pad - i * d;
  return from >= 0 && from % s == 0 && from / s < n ? from / s : -1;
}

extern "C" __global__ void max_pool_backward(T* gx, const T* gy, const INDEX* winner, int n, int h,
                                             int w, int oh, int ow, int kh, int kw, int sh, int sw,
                                             int top, int left, int dh, int dw) {
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p < n) {  // guard
    const int column = p % w, row = p / w % h;
    const long long plane = (long long)(p / w / h) * oh * ow;
    ACC sum = 0;
    for (int i = 0; i < kh; ++i) {
      const int r = window_of(row, i, sh, dh, top, oh);
      for (int j = 0; r >= 0 && j < kw; ++j) {
        const int q = window_of(column, j, sw, dw, left, ow);
        const long long o = plane + r * ow + q;
        if (q >= 0 && winner[o] == i * kw + j) sum += to_float(gy[o]);
      }
    }
    gx[p] = from_float<T>(sum);
  }
}

extern "C" __global__ void avg_pool(T* y, const T* x, const ACC* divisor, int n, int h, int w,
                                    int oh, int ow, int kh, int kw, int sh, int sw, int top,
                                    int left, int dh, int dw) {
  int o = blockIdx.x * blockDim.x + threadIdx.x;
  if (o < n) {  // guard
    const int q = o % ow, r = o / ow % oh;
    const T* xp = x + (long long)(o / ow / oh) * h * w;
    ACC sum = 0;
    for (int i = 0; i < kh; ++i)
      for (int j = 0; j < kw; ++j) {
        const int row = r * sh + i * dh - top, column = q * sw + j * dw - left;
        if (row >= 0 && row < h && column >= 0 && column < w) sum += to_float(xp[row * w + column]);
      }
    y[o] = from_float<T>(sum / divisor[r * ow + q]);
  }
}

extern "C" __global__ void avg_pool_backward(T* gx, const T* gy, const ACC* divisor, int n, int h,
                                             int w, int oh, int ow, int kh, int kw, int sh, int sw,
                                             int top, int left, int dh, int dw) {
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p < n) {  // guard
    const int column = p % w, row = p / w % h;
    const long long plane = (long long)(p / w / h) * oh * ow;
    ACC sum = 0;
    for (int i = 0; i < kh; ++i) {
      const int r = window_of(row, i, sh, dh, top, oh);
      for (int j = 0; r >= 0 && j < kw; ++j) {
        const int q = window_of(column, j, sw, dw, left, ow);
        if (q >= 0) sum += to_float(gy[plane + r * ow + q]) / divisor[r * ow + q];
      }
    }
    gx[p] = from_float<T>(sum);
  }
}

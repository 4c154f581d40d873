// Pooling on a CPU, in vectors. A thread computes a plane. It takes a strip of windows at a time:
//
//     x    a b c d e f g h        Windows of 3 neighbours, with a stride of 2. Element 0 of the
//     0    ^   ^   ^              windows is a, c, e: every second number of x. So the outer loops
//     1      ^   ^   ^            go over the elements of a window. The inner loop goes over the
//     2        ^   ^   ^          windows of a strip, one lane of a vector for each window.
//
// For each element (i, j), the kernel copies one number of every window into lanes. An element
// outside of x becomes -inf or 0. Then full vectors are compared or added, even if a row is short.
//
// Backward of max pooling: the thread of a plane adds each gy to the x that won. Only this thread
// adds to the plane.
//
// ../pool.cu has the formulas, the parameters, the bytes and the kernels for a GPU.
// Wrapper: minidl/ops/pool.py   Test: tests/ops/test_pool_kernel.py
#include "loops.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif
#ifndef INDEX  // unsigned char for windows of at most 256 elements, else int
#define INDEX unsigned char
#endif

const int STRIP = 256;  // windows of a strip: small enough that a thread's numbers stay in L1

// Returns the smallest place >= 0 with place * step >= p.
__forceinline__ int first_from(int p, int step) { return p > 0 ? (p + step - 1) / step : 0; }

// to[q - begin] = row[q * step + from] for the windows q of a row. The row has w numbers. For a
// place outside of the row, `outside` is written. If step is 1 or 2, STEP is the same number, so
// that the compiler knows it. Otherwise STEP is 0.
template <int STEP>
__forceinline__ void copy(ACC* to, const T* row, int begin, int end, int from, int step, int w,
                          ACC outside) {
  const int first = min(max(begin, first_from(-from, step)), end);
  const int last = max(first, min(end, first_from(w - from, step)));
  for (int q = begin; q < first; ++q) to[q - begin] = outside;
  SIMD
  for (int q = first; q < last; ++q)
    to[q - begin] = to_float(row[q * (STEP ? STEP : step) + from]);
  for (int q = last; q < end; ++q) to[q - begin] = outside;
}

// to[o - o0] = element (i, j) of window o, for the windows o0 to o0 + n - 1 of a plane.
__forceinline__ void gather(ACC* to, const T* x, int o0, int n, int h, int w, int ow, int sh,
                            int sw, int from_row, int from_column, ACC outside) {
  for (int o = o0; o < o0 + n;) {
    const int r = o / ow, begin = o - r * ow, end = min(ow, begin + o0 + n - o);
    const int row = r * sh + from_row;
    const bool inside = row >= 0 && row < h;
    const T* xr = x + (long long)(inside ? row : 0) * w;
    const int width = inside ? w : 0;
    if (sw == 1) copy<1>(to + o - o0, xr, begin, end, from_column, sw, width, outside);
    else if (sw == 2) copy<2>(to + o - o0, xr, begin, end, from_column, sw, width, outside);
    else copy<0>(to + o - o0, xr, begin, end, from_column, sw, width, outside);
    o += end - begin;
  }
}

// at[o - o0] = the number of the first element of window o that is inside of x. If all elements are
// -inf, this element wins.
__forceinline__ void first_inside(int* at, int o0, int n, int ow, int kh, int kw, int sh, int sw,
                                  int top, int left, int dh, int dw) {
  for (int o = o0; o < o0 + n; ++o) {
    const int r = o / ow, q = o - r * ow;
    at[o - o0] = min(first_from(top - r * sh, dh), kh - 1) * kw
                 + min(first_from(left - q * sw, dw), kw - 1);
  }
}

extern "C" __global__ void max_pool(T* y, INDEX* winner, const T* x, int planes, int h, int w,
                                    int oh, int ow, int kh, int kw, int sh, int sw, int top,
                                    int left, int dh, int dw) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < planes) {  // guard
    ACC v[STRIP], best[STRIP];
    int at[STRIP];
    for (int o0 = 0; o0 < oh * ow; o0 += STRIP) {
      const int n = min(STRIP, oh * ow - o0);
      T* yp = y + (long long)plane * oh * ow + o0;
      INDEX* wp = winner + (long long)plane * oh * ow + o0;
      for (int o = 0; o < n; ++o) best[o] = -INFINITY, at[o] = 0;
      if (top || left) first_inside(at, o0, n, ow, kh, kw, sh, sw, top, left, dh, dw);
      for (int i = 0; i < kh; ++i)
        for (int j = 0; j < kw; ++j) {
          gather(v, x + (long long)plane * h * w, o0, n, h, w, ow, sh, sw, i * dh - top,
                 j * dw - left, -INFINITY);
          const int element = i * kw + j;
          SIMD
          for (int o = 0; o < n; ++o) {
            const bool better = (v[o] > best[o]) | (v[o] != v[o]);
            best[o] = better ? v[o] : best[o];
            at[o] = better ? element : at[o];
          }
        }
      SIMD
      for (int o = 0; o < n; ++o) yp[o] = from_float<T>(best[o]);
      SIMD
      for (int o = 0; o < n; ++o) wp[o] = at[o];
    }
  }
}

extern "C" __global__ void max_pool_backward(T* gx, const T* gy, const INDEX* winner, int planes,
                                             int h, int w, int oh, int ow, int kh, int kw, int sh,
                                             int sw, int top, int left, int dh, int dw) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < planes) {  // guard
    T* gxp = gx + (long long)plane * h * w;
    const T* gyp = gy + (long long)plane * oh * ow;
    const INDEX* wp = winner + (long long)plane * oh * ow;
    // If windows do not overlap and do not begin in padding, each gx has at most one gy. So gy is
    // stored, not added.
    const bool apart = sh > (kh - 1) * dh && sw > (kw - 1) * dw && !top && !left;
    int rows[256], columns[256], offset[256];  // of each window element, to avoid divisions
    const bool table = sizeof(INDEX) == 1;
    for (int i = 0; table && i < kh; ++i)
      for (int j = 0; j < kw; ++j) {
        const int k = i * kw + j;
        rows[k] = i * dh - top, columns[k] = j * dw - left;
        offset[k] = rows[k] * w + columns[k];
      }
    for (int p = 0; p < h * w; ++p) gxp[p] = from_float<T>(0.0f);
    for (int r = 0; r < oh; ++r, gyp += ow, wp += ow) {
      if (apart && table) {
        T* row = gxp + r * sh * w;
        for (int q = 0; q < ow; ++q) row[q * sw + offset[wp[q]]] = gyp[q];
        continue;
      }
      for (int q = 0; q < ow; ++q) {
        const int k = wp[q];
        const int row = r * sh + (table ? rows[k] : k / kw * dh - top);
        const int column = q * sw + (table ? columns[k] : k % kw * dw - left);
        if (row >= 0 && row < h && column >= 0 && column < w) {  // else: a window with only padding
          T* at = gxp + row * w + column;
          *at = from_float<T>(to_float(*at) + to_float(gyp[q]));
        }
      }
    }
  }
}

extern "C" __global__ void avg_pool(T* y, const T* x, const ACC* divisor, int planes, int h, int w,
                                    int oh, int ow, int kh, int kw, int sh, int sw, int top,
                                    int left, int dh, int dw) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < planes) {  // guard
    ACC v[STRIP], sum[STRIP];
    for (int o0 = 0; o0 < oh * ow; o0 += STRIP) {
      const int n = min(STRIP, oh * ow - o0);
      T* yp = y + (long long)plane * oh * ow + o0;
      for (int o = 0; o < n; ++o) sum[o] = 0;
      for (int i = 0; i < kh; ++i)
        for (int j = 0; j < kw; ++j) {
          gather(v, x + (long long)plane * h * w, o0, n, h, w, ow, sh, sw, i * dh - top,
                 j * dw - left, 0);
          SIMD
          for (int o = 0; o < n; ++o) sum[o] += v[o];
        }
      SIMD
      for (int o = 0; o < n; ++o) yp[o] = from_float<T>(sum[o] / divisor[o0 + o]);
    }
  }
}

// gx has type ACC, because in half each addition is rounded.
extern "C" __global__ void avg_pool_backward(ACC* gx, const T* gy, const ACC* divisor, int planes,
                                             int h, int w, int oh, int ow, int kh, int kw, int sh,
                                             int sw, int top, int left, int dh, int dw) {
  int plane = blockIdx.x * blockDim.x + threadIdx.x;
  if (plane < planes) {  // guard
    ACC* gxp = gx + (long long)plane * h * w;
    ACC g[STRIP];
    for (int p = 0; p < h * w; ++p) gxp[p] = 0;
    for (int r = 0; r < oh; ++r)
      for (int q0 = 0; q0 < ow; q0 += STRIP) {
        const int n = min(STRIP, ow - q0);
        const T* gyr = gy + ((long long)plane * oh + r) * ow + q0;
        SIMD
        for (int q = 0; q < n; ++q) g[q] = to_float(gyr[q]) / divisor[r * ow + q0 + q];
        for (int i = first_from(top - r * sh, dh); i < kh && r * sh + i * dh - top < h; ++i) {
          ACC* row = gxp + (long long)(r * sh + i * dh - top) * w;
          for (int j = 0; j < kw; ++j) {
            const int from = j * dw - left, begin = max(q0, first_from(-from, sw));
            const int end = min(q0 + n, first_from(w - from, sw));
            for (int q = begin; q < end; ++q) row[q * sw + from] += g[q - q0];
          }
        }
      }
  }
}

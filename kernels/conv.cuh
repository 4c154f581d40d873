// Shared by the convolution kernels: the shapes, and the matrix of columns, which is never stored.
//
//   x  (N, G C, H, W)    N images, G groups of C channels. The W numbers of a row are neighbours
//   w  (G M, C, U, V)    a group computes M channels from its C channels
//   y  (N, G M, HY, WY)  a launch writes R x Q pixels of each channel
//
//   y[n, m, ty r + oy, tx q + ox] = bias[m] + sum over c, u, v of
//                                   w[m, c, u, v] x[n, c, sy r + fy + ey u, sx q + fx + ex v]
//
//   forward    s = stride, f = -padding, e = dilation; t = 1, o = 0: all pixels of y
//   by input   the same formula with gy in place of x, and w with C and M exchanged. t = stride,
//              s = 1. A phase is the set of all pixels of gx that use the same taps. There is one
//              launch for each phase (minidl/ops/conv_geometry.py)
//   by weight  gw[m, c, u, v] = sum over n, r, q of gy[n, m, r, q] x[n, c, sy r + ..., sx q + ...]
//
// A tap has the number k = (c, u, v), and a pixel has the number p = (n, r, q). Then forward and
// both gradients are products of matrices:
//
//                      P = N R Q pixels ->
//                    +---------------------+      columns[k][p] = x[n, c, sy r + fy + ey u, ...],
//        K = C U V   |       columns       |                      0 outside of the image
//   +-----------+    +---------------------+
// M |     w     |    |          y          |      y = w columns      gw = gy columns^T
//   +-----------+    +---------------------+
//
// The usual method, im2col, writes `columns` to memory, with each number of x up to U V times.
// These kernels keep only one tile of `columns`, in shared memory. To fill the tile, read() finds
// each element in x.
//
// Source: Chetlur et al. 2014, "cuDNN" (arXiv 1410.0759), for the implicit product.
// Launch: minidl/ops/conv_kernel.py   Test: tests/ops/test_conv_kernel.py
#pragma once
#include "tensor_core.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif

struct Shape {
  int N, G, C, M, H, W, U, V, R, Q, fy, sy, ey, fx, sx, ex, HY, WY, oy, ty, ox, tx;
};

// SHAPE has the last parameters of every kernel. SHAPE_OF_ALL makes a Shape from them. ey and ex
// are never negative.
#define SHAPE                                                                           \
  int N, int G, int C, int M, int H, int W, int U, int V, int R, int Q, int fy, int sy, \
  int ey, int fx, int sx, int ex, int HY, int WY, int oy, int ty, int ox, int tx
#define SHAPE_OF_ALL \
  {N, G, C, M, H, W, U, V, R, Q, fy, sy, ey, fx, sx, ex, HY, WY, oy, ty, ox, tx}

// The place in x that pixel p of y reads. image: the first channel of the pixel's group, in the
// pixel's image. h, w: the row and the column that tap (c, 0, 0) reads. If p is after the last
// pixel, h is the height of the image. Then all taps read 0.
template <typename E> struct Patch {
  const E* image;
  int h, w;
};
template <typename E>
__device__ __forceinline__ Patch<E> patch_of(const Shape& s, const E* x, int group, int p) {
  const int q = p % s.Q, r = p / s.Q % s.R, n = p / s.Q / s.R;
  if (n >= s.N) return {x, s.H, 0};  // guard
  return {x + ((long long)n * s.G + group) * s.C * s.H * s.W, s.sy * r + s.fy, s.sx * q + s.fx};
}

// Tap k of a filter: k = (c U + u) V + v. after() returns the next tap without a division.
struct Tap {
  int c, u, v;
};
__device__ __forceinline__ Tap tap_of(const Shape& s, int k) {
  return {k / s.V / s.U, k / s.V % s.U, k % s.V};
}
__device__ __forceinline__ Tap after(const Shape& s, Tap tap) {
  if (++tap.v == s.V) {
    tap.v = 0;
    if (++tap.u == s.U) tap.u = 0, ++tap.c;
  }
  return tap;
}

// Returns the element of `columns` for a patch and a tap. Returns 0 beyond the edges of the image
// and after the last tap.
template <typename E>
__device__ __forceinline__ E read(const Shape& s, const Patch<E>& patch, const Tap& tap) {
  const int h = patch.h + s.ey * tap.u, w = patch.w + s.ex * tap.v;
  const bool inside = tap.c < s.C && h >= 0 && h < s.H && w >= 0 && w < s.W;  // guard
  return inside ? patch.image[(tap.c * s.H + h) * s.W + w] : E(0.0f);
}

// Returns gy (N, G M, R, Q) for channel m of a group and pixel p. Returns 0 if there is no such
// channel or pixel.
template <typename E>
__device__ __forceinline__ E read_gradient(const Shape& s, const E* gy, int group, int m, int p) {
  const int size = s.R * s.Q, n = p / size;
  if (m >= s.M || n >= s.N) return E(0.0f);  // guard
  return gy[(((long long)n * s.G + group) * s.M + m) * size + p % size];
}

// Writes sum plus bias to pixel p of channel m of a group.
template <typename E, typename A>
__device__ __forceinline__ void write(const Shape& s, E* y, const E* bias, int group, int m, int p,
                                      A sum) {
  const int q = p % s.Q, r = p / s.Q % s.R, n = p / s.Q / s.R;
  if (m >= s.M || n >= s.N) return;  // guard
  const int channel = group * s.M + m;
  if (bias) sum += to_float(bias[channel]);
  y[(((long long)n * s.G * s.M + channel) * s.HY + s.ty * r + s.oy) * s.WY + s.tx * q + s.ox] =
      from_float<E>(sum);
}

// ---- a tile on tensor cores: 256 threads compute ROWS x 128 numbers of a product. In a step they
// sum over DEEP = 32 taps or pixels ----

#ifndef ROWS  // 64 if a group has at most 64 channels to write
#define ROWS 128
#endif
#define COLUMNS 128
#define DEEP 32
#define PITCH (DEEP + 8)  // rows of 80 bytes, so ldmatrix reads 8 rows from 8 groups of 4 banks
#define HIGH (ROWS / 32)  // fragments of a warp's rows. Its columns are 4 fragments of 8

// Adds the product of `a` and the transpose of `b` to `sum`. `a` has ROWS rows of DEEP numbers, and
// `b` has COLUMNS rows of DEEP numbers. Both are in shared memory. `sum` is the warp's part of the
// tile, ROWS / 2 x 32 numbers.
__device__ __forceinline__ void multiply(float (*sum)[4][4], const __half* a, const __half* b) {
  const int warp = threadIdx.x / 32;
  a += warp / 4 * (ROWS / 2) * PITCH;
  b += warp % 4 * 32 * PITCH;
#pragma unroll
  for (int l = 0; l < DEEP; l += 16) {
    unsigned int af[HIGH][4], bf[2][4];  // fragments: HIGH of a, and 4 of b in two pairs
#pragma unroll
    for (int i = 0; i < HIGH; ++i) load_a(af[i], a + 16 * i * PITCH + l, PITCH);
#pragma unroll
    for (int j = 0; j < 2; ++j) load_b_transposed(bf[j], b + 16 * j * PITCH + l, PITCH);
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) mma(sum[i][j], af[i], bf[j / 2] + j % 2 * 2);
  }
}

// A lane's fragment sum[i][j] has four numbers. row_of and column_of return the row and the column
// of number x in the tile.
__device__ __forceinline__ int row_of(int i, int x) {
  return threadIdx.x / 128 * (ROWS / 2) + 16 * i + threadIdx.x % 32 / 4 + x / 2 * 8;
}
__device__ __forceinline__ int column_of(int j, int x) {
  return threadIdx.x / 32 % 4 * 32 + 8 * j + threadIdx.x % 4 * 2 + x % 2;
}

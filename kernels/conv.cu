// Convolution, and its gradient of the input. Both use the same kernels: the parameters of a launch
// tell which pixel a thread writes and where it reads. conv.cuh explains the shapes, the formula
// and the matrix of columns.
//
//                  pixels p = (n, r, q)        y = w columns + bias
//                +----------[  ]---------+     A number of y takes 2 K operations.
//    K taps,     |          [  ]         |     A block computes a tile of y. It goes through k in
//    k = (c,u,v) |          [  ]         |     steps, with tiles [ ] of w and of columns in
//   +----------+ +----------[  ]---------+     shared memory.
// M | [ ][ ][ ]| |          [y ]         |     In float, a launch must read w, read 4 C bytes of
//   +----------+ +-----------------------+     x and write 4 M bytes of y for each pixel
//                            elements loaded from memory for         what the rung saves, compared
//                            each multiply-add                       with the rung before
//   v1  a thread computes         1 of w, 1 of x
//       one output
//   v2  a block keeps tiles in    1 / 16 of w, 1 / 16 of x           15 of 16 loads
//       shared memory
//   v3  a block computes 64 x 64  1 / 64 of w, 1 / 64 of x           3 of 4 loads from memory and
//       outputs, a thread 4 x 4                                      from shared memory
//   v4  16 bytes in each access   as v3                              3 of 4 load instructions, or
//                                                                    7 of 8 in half
//   v5  tensor cores, in half     1 / 128 of w, 1 / 128 of x         multiply-adds of the lanes
//   _winograd    3 x 3 filters, stride 1                             20 of 36 multiplications
//   _depthwise   C = M = 1        1 of x, from the cache             15 of 16 rows of a tile, which
//                                                                    have no channel to write
//
// Neighbouring threads load neighbouring pixels of a tile of columns. If the stride sx is 1, these
// are neighbours in x, too. Padding, and elements beyond the edges of a matrix, count as zeros. The
// kernels multiply them like the other elements.
//
// Expected share of the multiply-adds that the lanes of an H100 can do. It is computed, not
// measured. An integer division takes about 20 instructions. "A step" is a step of one thread.
//   v1  5%      It waits for the cache, as matmul_v1 does
//   v2  10%     For 16 multiply-adds, a step has 32 loads from shared memory, and 3 divisions to
//               find a tap
//   v3  40%     A step has 256 multiply-adds. Its 128 loads from shared memory take twice as long.
//               It needs divisions only for the first of 4 taps
//   v4  60%     A step has only 32 loads from shared memory, of 16 bytes each. They take less time
//               than the multiply-adds
//   v5  40%     of the tensor cores' peak. A step of a block has 128 x 128 x 32 multiply-adds. They
//               take 512 cycles of an A100's SM. The step also loads 4096 elements of columns, with
//               about 20 instructions for each. They take 640 cycles, partly at the same time
//   _winograd   80%, if the multiplications of the plain formula are counted. It does 35% of the
//               possible multiplications, and each does the work of 2.25. In a step, 256
//               multiply-adds need 128 loads from shared memory and the transforms
//   _depthwise  60 to 80% of a copy's bandwidth, for 3 x 3 filters in float. For each pixel, 18
//               loads from caches and shared memory take less time than 8 bytes from memory. In
//               half the share is 30 to 40%
//
// Source: Chetlur et al. 2014 (implicit product); Lavin & Gray 2016, arXiv 1509.09308 (Winograd);
// Volkov & Demmel 2008 (registers).
// Launch: minidl/ops/conv_kernel.py   Test: tests/ops/test_conv_kernel.py
// The gradient of the weight: conv_weight.cu
#include "conv.cuh"

// v1: each thread computes one output, the sum over its patch.
// Block: 2-D (pixels, channels), any size.
extern "C" __global__ void conv_v1(T* y, const T* x, const T* w, const T* bias, SHAPE) {
  const Shape s = SHAPE_OF_ALL;
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  int channel = blockIdx.y * blockDim.y + threadIdx.y;
  if (p < N * R * Q && channel < G * M) {  // guard
    const Patch<T> patch = patch_of(s, x, channel / M, p);
    const T* row = w + (long long)channel * C * U * V;
    ACC sum = 0;
    for (int c = 0; c < C; ++c)
      for (int u = 0; u < U; ++u)
        for (int v = 0; v < V; ++v)
          sum += to_float(row[(c * U + u) * V + v]) * to_float(read(s, patch, {c, u, v}));
    write(s, y, bias, channel / M, channel % M, p, sum);
  }
}

// v2: a block computes 16 channels of 16 pixels. It goes through the K taps in steps of 16. In a
// step each thread loads one element of w and one element of columns into shared memory. Then each
// thread uses 16 elements of both tiles. So v2 needs 16 times fewer loads from memory than v1.
// grid (pixels, channels of a group, groups), block 16 x 16.
#define TILE 16
extern "C" __global__ void conv_v2(T* y, const T* x, const T* w, const T* bias, SHAPE) {
  __shared__ ACC ws[TILE][TILE], xs[TILE][TILE];
  const Shape s = SHAPE_OF_ALL;
  const int i = threadIdx.y, j = threadIdx.x, group = blockIdx.z, K = C * U * V;
  const int m = blockIdx.y * TILE + i, p = blockIdx.x * TILE + j;
  const Patch<T> patch = patch_of(s, x, group, p);
  w += (long long)group * M * K;
  ACC sum = 0;
  for (int k0 = 0; k0 < K; k0 += TILE) {
    // guard: elements beyond the edges are 0, so they add nothing
    ws[i][j] = m < M && k0 + j < K ? to_float(w[(long long)m * K + k0 + j]) : ACC(0);
    xs[i][j] = to_float(read(s, patch, tap_of(s, k0 + i)));
    __syncthreads();  // both tiles are complete
    for (int k = 0; k < TILE; ++k) sum += ws[i][k] * xs[k][j];
    __syncthreads();  // all threads have read both tiles
  }
  write(s, y, bias, group, m, p, sum);
}

// Loads the four elements of columns that a thread of v3 and v4 loads in each step. They belong to
// neighbouring taps of one pixel. A thread has the same pixel in every step.
#define SIDE 64
#define STEP 16
#define EACH 4  // SIDE / 16
__device__ __forceinline__ void fetch_column(ACC (*xs)[SIDE], const Shape& s,
                                             const Patch<T>& patch, int me, int k0) {
  const int row = me / SIDE * EACH;
  Tap tap = tap_of(s, k0 + row);
  for (int a = 0; a < EACH; ++a, tap = after(s, tap))
    xs[row + a][me % SIDE] = to_float(read(s, patch, tap));
}

// v3: a block computes 64 channels of 64 pixels. A thread computes 4 channels of 4 pixels, in
// registers. So v3 needs 4 times fewer loads from memory than v2. It needs 8 loads from shared
// memory for 16 multiply-adds. Thread (j, i) computes channels i, i + 16, ... and pixels j, j + 16,
// ...
// Block 16 x 16.
extern "C" __global__ void conv_v3(T* y, const T* x, const T* w, const T* bias, SHAPE) {
  // with + 1 a row has 17 elements. So the 2 rows that a warp reads at once lie in different banks
  __shared__ ACC ws[SIDE][STEP + 1];
  __shared__ ACC xs[STEP][SIDE];
  const Shape s = SHAPE_OF_ALL;
  const int i = threadIdx.y, j = threadIdx.x, me = i * 16 + j, group = blockIdx.z, K = C * U * V;
  const int m0 = blockIdx.y * SIDE, p0 = blockIdx.x * SIDE;
  const Patch<T> patch = patch_of(s, x, group, p0 + me % SIDE);
  w += (long long)group * M * K;
  ACC sum[EACH][EACH] = {};
  for (int k0 = 0; k0 < K; k0 += STEP) {
    for (int e = me; e < SIDE * STEP; e += 256) {
      const int m = m0 + e / STEP, k = k0 + e % STEP;
      // guard: elements beyond the edges are 0, so they add nothing
      ws[e / STEP][e % STEP] = m < M && k < K ? to_float(w[(long long)m * K + k]) : ACC(0);
    }
    fetch_column(xs, s, patch, me, k0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STEP; ++k) {
      ACC wv[EACH], xv[EACH];
#pragma unroll
      for (int a = 0; a < EACH; ++a) {
        wv[a] = ws[i + 16 * a][k];
        xv[a] = xs[k][j + 16 * a];
      }
#pragma unroll
      for (int a = 0; a < EACH; ++a)
#pragma unroll
        for (int b = 0; b < EACH; ++b) sum[a][b] += wv[a] * xv[b];
    }
    __syncthreads();
  }
  for (int a = 0; a < EACH; ++a)
    for (int b = 0; b < EACH; ++b)
      write(s, y, bias, group, m0 + i + 16 * a, p0 + j + 16 * b, sum[a][b]);
}

// v4: as v3, with 16 bytes in each access. Thread (j, i) computes channels 4 i to 4 i + 3 and
// pixels 4 j to 4 j + 3. In shared memory the 4 channels are neighbours, and the 4 pixels, too. So
// one access loads four floats. Packs of 16 bytes can be read from memory
//   of w   if a row of K elements has whole packs: K * sizeof(T) % 16 == 0
//   of x   if the pixels of a pack are neighbours, and the pack is aligned for every tap. With
//          n = 16 / sizeof(T) elements in a pack: sx = 1, W % n == 0, Q % n == 0, fx % n == 0, and
//          V = 1 or ex % n == 0. A filter with one column can meet these conditions. For a 1 x 1
//          filter the launch passes an image as a single row (`pointwise` in conv_kernel.py). A
//          3 x 3 filter cannot meet them: it reads columns q - 1, q and q + 1, and only one of the
//          three can be aligned
// If packs are not possible, v4 loads one element at a time, as v3 does.
extern "C" __global__ void conv_v4(T* y, const T* x, const T* w, const T* bias, SHAPE) {
  // with + 4 a row still has whole packs. A warp writes a column of ws to 16 banks. Without + 4 it
  // writes to only 8 banks
  __shared__ __align__(16) ACC ws[STEP][SIDE + 4];
  __shared__ __align__(16) ACC xs[STEP][SIDE];
  const Shape s = SHAPE_OF_ALL;
  const int i = threadIdx.y, j = threadIdx.x, me = i * 16 + j, group = blockIdx.z, K = C * U * V;
  const int m0 = blockIdx.y * SIDE, p0 = blockIdx.x * SIDE, n = PACK(T), across = SIDE / n;
  w += (long long)group * M * K;
  const bool whole = packs(w, K);
  const bool side_by_side = sx == 1 && W % n == 0 && Q % n == 0 && fx % n == 0 &&
      (V == 1 || ex % n == 0) && packs(x);
  const Patch<T> patch = patch_of(s, x, group, p0 + (side_by_side ? me % across * n : me % SIDE));
  ACC sum[EACH][EACH] = {};
  for (int k0 = 0; k0 < K; k0 += STEP) {
    for (int e = me; e < SIDE * STEP / n; e += 256) {  // w, transposed: its columns become rows
      const int row = e / (STEP / n), k = e % (STEP / n) * n, rest = K - k0 - k;
      const Pack<T> pack =
          load_pack(w + (long long)(m0 + row) * K + k0 + k, m0 + row < M ? rest : 0, whole);
      for (int a = 0; a < n; ++a) ws[k + a][row] = to_float(pack.at[a]);
    }
    if (side_by_side) {
      for (int e = me; e < STEP * across; e += 256) {
        const Tap tap = tap_of(s, k0 + e / across);
        const int h = patch.h + ey * tap.u, left = patch.w + ex * tap.v;
        const bool inside = tap.c < C && h >= 0 && h < H && left >= 0 && left < W;  // guard
        const Pack<T> pack =
            load_pack(patch.image + (tap.c * H + h) * W + left, inside ? n : 0, true);
        for (int a = 0; a < n; ++a) xs[e / across][e % across * n + a] = to_float(pack.at[a]);
      }
    } else {
      fetch_column(xs, s, patch, me, k0);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STEP; ++k) {
      ACC wv[EACH], xv[EACH];
      take<EACH>(wv, ws[k], EACH * i, SIDE, true);
      take<EACH>(xv, xs[k], EACH * j, SIDE, true);
#pragma unroll
      for (int a = 0; a < EACH; ++a)
#pragma unroll
        for (int b = 0; b < EACH; ++b) sum[a][b] += wv[a] * xv[b];
    }
    __syncthreads();
  }
  for (int a = 0; a < EACH; ++a)
    for (int b = 0; b < EACH; ++b)
      write(s, y, bias, group, m0 + EACH * i + a, p0 + EACH * j + b, sum[a][b]);
}

// v5 uses tensor cores (`multiply` in conv.cuh). A block computes ROWS channels of 128 pixels. In a
// step, thread t loads 16 bytes of w for every 64 channels, and 16 taps of pixel t % 128. It
// computes the pixel's position once, and goes from tap to tap without a division. A row of xs, the
// tile of columns, holds the taps of one pixel. During a step, the thread loads the elements of the
// next step into registers. There are two buffers in shared memory, so one barrier in each step is
// enough.
// grid (pixels, channels of a group, groups), block 256.
extern "C" __global__ void __launch_bounds__(256) conv_v5(
    __half* y, const __half* x, const __half* w, const __half* bias, SHAPE) {
  __shared__ __align__(16) __half ws[2][ROWS * PITCH];
  __shared__ __align__(16) __half xs[2][COLUMNS * PITCH];
  const Shape s = SHAPE_OF_ALL;
  const int t = threadIdx.x, group = blockIdx.z, K = C * U * V;
  const int m0 = blockIdx.y * ROWS, p0 = blockIdx.x * COLUMNS;
  w += (long long)group * M * K;
  const bool whole = packs(w, K);
  const Patch<__half> patch = patch_of(s, x, group, p0 + t % COLUMNS);
  Pack<__half> next_w[ROWS / 64], next_x[2];
  const auto fetch_step = [&](int k0) {
    for (int h = 0; h < ROWS / 64; ++h) {
      const int m = m0 + t / 4 + 64 * h, k = k0 + t % 4 * 8;
      next_w[h] = load_pack(w + (long long)m * K + k, m < M ? K - k : 0, whole);
    }
    Tap tap = tap_of(s, k0 + t / COLUMNS * 16);
#pragma unroll
    for (int a = 0; a < 16; ++a, tap = after(s, tap))
      next_x[a / 8].at[a % 8] = read(s, patch, tap);
  };
  float sum[HIGH][4][4] = {};
  fetch_step(0);
  for (int k0 = 0, now = 0; k0 < K; k0 += DEEP, now ^= 1) {
    for (int h = 0; h < ROWS / 64; ++h)
      *(uint4*)(ws[now] + (t / 4 + 64 * h) * PITCH + t % 4 * 8) = next_w[h].all;
    for (int h = 0; h < 2; ++h)
      *(uint4*)(xs[now] + t % COLUMNS * PITCH + t / COLUMNS * 16 + 8 * h) = next_x[h].all;
    __syncthreads();  // the buffer is complete, and no thread reads the other buffer any longer
    if (k0 + DEEP < K) fetch_step(k0 + DEEP);
    multiply(sum, ws[now], xs[now]);
  }
#pragma unroll  // sum stays in registers
  for (int i = 0; i < HIGH; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int a = 0; a < 4; ++a)
        write(s, y, bias, group, m0 + row_of(i, a), p0 + column_of(j, a), sum[i][j][a]);
}

// Winograd's F(2 x 2, 3 x 3). In one dimension, 2 outputs and 3 taps need 4 multiplications, not 6:
//
//   d0 d1 d2 d3 of x, g0 g1 g2 of w       y0 = d0 g0 + d1 g1 + d2 g2 = m0 + m1 + m2
//                                         y1 = d1 g0 + d2 g1 + d3 g2 = m1 - m2 - m3
//   m0 = (d0 - d2) g0                     m1 = (d1 + d2) (g0 + g1 + g2) / 2
//   m3 = (d1 - d3) g2                     m2 = (d2 - d1) (g0 - g1 + g2) / 2
//
// The kernel transforms the other dimension in the same way. A tile of 4 x 4 pixels becomes 16
// numbers, and a filter of 3 x 3 becomes 16 numbers. Their 16 products are summed over the
// channels. The 16 sums become 2 x 2 pixels of the result. Every block transforms the filters
// again. For 9 loads of a filter it does 16 x 32 multiply-adds.
//
// A block computes 32 output channels of 32 tiles. A thread computes 2 channels of 2 tiles, with 64
// sums in registers. A step has 4 input channels. In a step, half of the threads transform filters,
// and the other half transform tiles. U = V = 3, sy = sx = ey = ex = 1.
// grid (tiles, channels of a group, groups), block 16 x 16.
#define MANY 32
#define CHANNELS 4
// These three functions transform pixels, a filter, and sums, in one dimension. Each works in place
// on four numbers of an array, at the indices 0, `apart`, 2 * `apart` and 3 * `apart`.
__device__ __forceinline__ void spread_pixels(ACC* d, int apart) {
  const ACC a = d[0], b = d[apart], c = d[2 * apart], e = d[3 * apart];
  d[0] = a - c, d[apart] = b + c, d[2 * apart] = c - b, d[3 * apart] = b - e;
}
__device__ __forceinline__ void spread_filter(ACC* g, int apart) {
  const ACC a = g[0], b = g[apart], c = g[2 * apart];
  g[apart] = (a + b + c) / 2, g[2 * apart] = (a - b + c) / 2, g[3 * apart] = c;
}
__device__ __forceinline__ void gather_sums(ACC* m, int apart) {
  const ACC a = m[0], b = m[apart], c = m[2 * apart], d = m[3 * apart];
  m[0] = a + b + c, m[apart] = b - c - d;
}

extern "C" __global__ void __launch_bounds__(256) conv_winograd(
    T* y, const T* x, const T* w, const T* bias, SHAPE) {
  __shared__ __align__(16) ACC ws[CHANNELS][16][MANY];
  __shared__ __align__(16) ACC xs[CHANNELS][16][MANY];
  const Shape s = SHAPE_OF_ALL;
  const int i = threadIdx.y, j = threadIdx.x, me = i * 16 + j, group = blockIdx.z;
  const int m0 = blockIdx.y * MANY, tile0 = blockIdx.x * MANY;
  const int high = (R + 1) / 2, across = (Q + 1) / 2;  // tiles of a channel
  w += (long long)group * M * C * 9;
  // In a step this thread transforms one channel of one filter, or of one tile.
  const int own_channel = me / MANY % CHANNELS, own = me % MANY, tile = tile0 + own;
  const bool is_filter = me < CHANNELS * MANY;
  const int r = tile / across % high * 2, q = tile % across * 2, n = tile / across / high;
  const Patch<T> patch = patch_of(s, x, group, (n * R + r) * Q + q);
  ACC sum[2][2][16] = {};
  for (int c0 = 0; c0 < C; c0 += CHANNELS) {
    ACC d[16] = {};
    const int c = c0 + own_channel;
    if (is_filter) {
      if (c < C && m0 + own < M)  // guard
#pragma unroll
        for (int a = 0; a < 9; ++a)
          d[a / 3 * 4 + a % 3] = to_float(w[((long long)(m0 + own) * C + c) * 9 + a]);
#pragma unroll
      for (int a = 0; a < 3; ++a) spread_filter(d + 4 * a, 1);
#pragma unroll
      for (int a = 0; a < 4; ++a) spread_filter(d + a, 4);
    } else {
#pragma unroll
      for (int a = 0; a < 16; ++a) d[a] = to_float(read(s, patch, {c, a / 4, a % 4}));
#pragma unroll
      for (int a = 0; a < 4; ++a) spread_pixels(d + 4 * a, 1);
#pragma unroll
      for (int a = 0; a < 4; ++a) spread_pixels(d + a, 4);
    }
    __syncthreads();  // all threads have read the previous step's numbers
#pragma unroll
    for (int a = 0; a < 16; ++a) (is_filter ? ws : xs)[own_channel][a][own] = d[a];
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < CHANNELS; ++k)
#pragma unroll
      for (int a = 0; a < 16; ++a) {
        const ACC w0 = ws[k][a][2 * i], w1 = ws[k][a][2 * i + 1];
        const ACC x0 = xs[k][a][2 * j], x1 = xs[k][a][2 * j + 1];
        sum[0][0][a] += w0 * x0, sum[0][1][a] += w0 * x1;
        sum[1][0][a] += w1 * x0, sum[1][1][a] += w1 * x1;
      }
  }
#pragma unroll
  for (int f = 0; f < 2; ++f)
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      ACC* m = sum[f][g];
#pragma unroll
      for (int a = 0; a < 4; ++a) gather_sums(m + 4 * a, 1);
#pragma unroll
      for (int a = 0; a < 2; ++a) gather_sums(m + a, 4);
      const int of = tile0 + 2 * j + g, top = of / across % high * 2, left = of % across * 2;
#pragma unroll
      for (int a = 0; a < 4; ++a)
        if (top + a / 2 < R && left + a % 2 < Q)  // guard: the tile may reach past the edge
          write(s, y, bias, group, m0 + 2 * i + f,
                (of / across / high * R + top + a / 2) * Q + left + a % 2, m[a / 2 * 4 + a % 2]);
    }
}

// This kernel is for groups that read one channel and write one channel. In v2 to v5 such a group
// fills only one row of a tile. In this kernel a block computes one channel of one image, or a part
// of it. It keeps the taps in shared memory. Most pixels come from the cache, because neighbouring
// threads read the same pixels.
// grid (N G, parts), block: 1-D, any size.
extern "C" __global__ void conv_depthwise(T* y, const T* x, const T* w, const T* bias, SHAPE) {
  extern __shared__ __align__(16) unsigned char memory[];
  ACC* taps = (ACC*)memory;  // U V numbers
  const Shape s = SHAPE_OF_ALL;
  const int n = blockIdx.x / G, group = blockIdx.x % G;
  for (int k = threadIdx.x; k < U * V; k += blockDim.x) taps[k] = to_float(w[group * U * V + k]);
  __syncthreads();
  const int place = blockIdx.y * blockDim.x + threadIdx.x;
  if (place < R * Q) {  // guard
    const int p = n * R * Q + place;
    const Patch<T> patch = patch_of(s, x, group, p);
    ACC sum = 0;
    for (int u = 0; u < U; ++u)
      for (int v = 0; v < V; ++v) sum += taps[u * V + v] * to_float(read(s, patch, {0, u, v}));
    write(s, y, bias, group, 0, p, sum);
  }
}

// The gradient of a convolution by its weight. conv.cuh explains the shapes and the matrix of
// columns.
//
//   gw[m, c, u, v] = sum over n, r, q of gy[n, m, r, q] x[n, c, sy r + fy + ey u, sx q + fx + ex v]
//
//         p ->              gw = gy columns^T: M x K numbers, K = C U V, and each is a sum over all
//   +-------------+         P = N R Q pixels. There are few results and long sums. To keep a GPU
//   |     gy      | M       busy, the pixels are cut into shares, and each block sums one share.
//   +-------------+
//   +-------------+         A pixel takes 2 M C U V operations. In float it has 4 C bytes of x and
//   |   columns   | K       4 M bytes of gy, which must be read at least once. The kernels write
//   +-------------+         gw, and a partial gw in float for each share.
//     share 0 | share 1 | ...
//                              elements loaded from memory     what the rung saves, compared with
//                              for each multiply-add           the rung before
//   v1  a thread computes one    1 of gy, 1 of x
//       weight's gradient
//   v2  a block keeps tiles in   1 / 16 of gy, 1 / 16 of x       15 of 16 loads
//       shared memory
//   v3  a block computes         1 / 64 of gy, 1 / 64 of x       3 of 4 loads. With shares, more
//       64 x 64 sums of a share,                                 blocks have work if gw is small
//       a thread 4 x 4
//   v5  tensor cores, in half    1 / 128 of gy, 1 / 128 of x     multiply-adds of the lanes
//   _depthwise  C = M = 1, a     1 of gy, 1 of x                 time: in v1 only U V threads of a
//       block for each weight                                    channel have work
//
// conv_weight_sum adds the shares of v3 and v5 in their order, and the number of shares depends
// only on the shape. So each run gives the same bits. With atomics the order of additions changes
// from run to run. There is no v4, because for most taps the address of x is not a multiple of 16
// (see conv_v4). v5 loads 16 bytes of gy at once if R Q is a multiple of 8.
//
// Expected shares of the peak of lanes or tensor cores. They are computed, not measured. v2 reaches
// 10%, v3 40% and v5 40%, as in conv.cu, because the loops are the same. v1 stays below 5%, because
// a small gw has few threads. A partial sum is written and read, 8 bytes for at least 1024
// operations. This takes less than a tenth of the time. _depthwise reads gy and x U V times. Only
// the first read is from memory. The other reads are from the L2 cache, which is 3 times as fast.
// For 3 x 3 filters this gives 30% of a copy's bandwidth, if each byte is counted once.
//
// Source: as in conv.cu.
// Launch: minidl/ops/conv_kernel.py   Test: tests/ops/test_conv_kernel.py
#include "conv.cuh"

// v1: a thread computes the gradient of one weight, a sum over all pixels.
// Block: 2-D (taps, channels), any size.
extern "C" __global__ void conv_weight_v1(T* gw, const T* gy, const T* x, SHAPE) {
  const Shape s = SHAPE_OF_ALL;
  int k = blockIdx.x * blockDim.x + threadIdx.x;
  int channel = blockIdx.y * blockDim.y + threadIdx.y;
  if (k < C * U * V && channel < G * M) {  // guard
    const int group = channel / M, m = channel % M;
    const Tap tap = tap_of(s, k);
    ACC sum = 0;
    for (int n = 0; n < N; ++n) {
      Patch<T> patch = patch_of(s, x, group, n * R * Q);
      const T* g = gy + ((long long)n * G * M + channel) * R * Q;
      for (int r = 0; r < R; ++r, patch.h += sy)
        for (int q = 0; q < Q; ++q)
          sum += to_float(g[r * Q + q])
              * to_float(read(s, Patch<T>{patch.image, patch.h, patch.w + sx * q}, tap));
    }
    gw[(long long)channel * C * U * V + k] = from_float<T>(sum);
  }
}

// v2: a block computes 16 channels x 16 taps, and goes through the pixels in steps of 16. In both
// tiles a row holds the pixels of a step, so neighbouring threads load neighbouring pixels.
// grid (taps, channels of a group, groups), block 16 x 16.
#define TILE 16
extern "C" __global__ void conv_weight_v2(T* gw, const T* gy, const T* x, SHAPE) {
  // with + 1 a row has 17 elements. So the 16 rows that a warp reads at once lie in different banks
  __shared__ ACC gs[TILE][TILE + 1], xs[TILE][TILE + 1];
  const Shape s = SHAPE_OF_ALL;
  const int i = threadIdx.y, j = threadIdx.x, group = blockIdx.z, K = C * U * V;
  const int m0 = blockIdx.y * TILE, k0 = blockIdx.x * TILE;
  const Tap tap = tap_of(s, k0 + i);
  ACC sum = 0;
  for (int p0 = 0; p0 < N * R * Q; p0 += TILE) {
    gs[i][j] = to_float(read_gradient(s, gy, group, m0 + i, p0 + j));
    xs[i][j] = to_float(read(s, patch_of(s, x, group, p0 + j), tap));
    __syncthreads();  // both tiles are complete
    for (int p = 0; p < TILE; ++p) sum += gs[i][p] * xs[j][p];
    __syncthreads();  // all threads have read both tiles
  }
  if (m0 + i < M && k0 + j < K)  // guard
    gw[((long long)group * M + m0 + i) * K + k0 + j] = from_float<T>(sum);
}

// v3: a block computes 64 channels x 64 taps of one share of the pixels. A thread computes 4
// channels x 4 taps, in registers. partial: (shares, G M, K). A share has `share` pixels, a
// multiple of 32.
// grid (taps, channels of a group, groups x shares), block 16 x 16.
#define SIDE 64
#define STEP 16
#define EACH 4  // SIDE / 16
extern "C" __global__ void conv_weight_v3(ACC* partial, const T* gy, const T* x, int share, SHAPE) {
  __shared__ ACC gs[SIDE][STEP + 1], xs[SIDE][STEP + 1];
  const Shape s = SHAPE_OF_ALL;
  const int i = threadIdx.y, j = threadIdx.x, me = i * 16 + j, K = C * U * V;
  const int group = blockIdx.z % G, which = blockIdx.z / G;
  const int m0 = blockIdx.y * SIDE, k0 = blockIdx.x * SIDE;
  const int end = min((which + 1) * share, N * R * Q);
  Tap taps[EACH];  // the taps of the rows of xs that this thread loads
  for (int a = 0; a < EACH; ++a) taps[a] = tap_of(s, k0 + me / STEP + 16 * a);
  ACC sum[EACH][EACH] = {};
  for (int p0 = which * share; p0 < end; p0 += STEP) {
    const int p = p0 + me % STEP;
    const Patch<T> patch = patch_of(s, x, group, p);
#pragma unroll
    for (int a = 0; a < EACH; ++a) {
      const int row = me / STEP + 16 * a;
      gs[row][me % STEP] = to_float(read_gradient(s, gy, group, m0 + row, p));
      xs[row][me % STEP] = to_float(read(s, patch, taps[a]));
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < STEP; ++l) {
      ACC gv[EACH], xv[EACH];
#pragma unroll
      for (int a = 0; a < EACH; ++a) {
        gv[a] = gs[i + 16 * a][l];
        xv[a] = xs[j + 16 * a][l];
      }
#pragma unroll
      for (int a = 0; a < EACH; ++a)
#pragma unroll
        for (int b = 0; b < EACH; ++b) sum[a][b] += gv[a] * xv[b];
    }
    __syncthreads();
  }
  for (int a = 0; a < EACH; ++a)
    for (int b = 0; b < EACH; ++b) {
      const int m = m0 + i + 16 * a, k = k0 + j + 16 * b;
      if (m < M && k < K)  // guard
        partial[(((long long)which * G + group) * M + m) * K + k] = sum[a][b];
    }
}

// The second pass of v3 and v5. A thread adds the partial sums of one weight, in the order of the
// shares.
extern "C" __global__ void conv_weight_sum(T* gw, const ACC* partial, int n_shares, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {  // guard
    ACC sum = 0;
    for (int a = 0; a < n_shares; ++a) sum += partial[(long long)a * n + i];
    gw[i] = from_float<T>(sum);
  }
}

// v5 uses tensor cores (`multiply` in conv.cuh). A block computes ROWS channels x 128 taps of a
// share. In a step, thread t loads 8 pixels of gy for every 64 channels. It also loads 16 taps of
// pixel t % 32 of columns, and computes the pixel's position once. A row of xs, the tile of
// columns, holds the pixels of one tap. There are two buffers, as in conv_v5.
// grid (taps, channels of a group, groups x shares), block 256.
extern "C" __global__ void __launch_bounds__(256, 2) conv_weight_v5(
    float* partial, const __half* gy, const __half* x, int share, SHAPE) {
  __shared__ __align__(16) __half gs[2][ROWS * PITCH];
  __shared__ __align__(16) __half xs[2][COLUMNS * PITCH];
  const Shape s = SHAPE_OF_ALL;
  const int t = threadIdx.x, K = C * U * V, size = R * Q;
  const int group = blockIdx.z % G, which = blockIdx.z / G;
  const int m0 = blockIdx.y * ROWS, k0 = blockIdx.x * COLUMNS;
  const int end = min((which + 1) * share, N * size);
  const bool whole = packs(gy, size);
  const Tap first = tap_of(s, k0 + t / DEEP * 16);  // the first of this thread's 16 taps
  Pack<__half> next_g[ROWS / 64], next_x[2];
  const auto fetch_step = [&](int p0) {
    for (int h = 0; h < ROWS / 64; ++h) {
      const int m = m0 + t / 4 + 64 * h, p = p0 + t % 4 * 8;
      if (whole) {  // 8 pixels of one image
        const long long channel = ((long long)(p / size) * G + group) * M + m;
        next_g[h] = load_pack(gy + channel * size + p % size, m < M && p < end ? 8 : 0, true);
      } else {
        for (int a = 0; a < 8; ++a) next_g[h].at[a] = read_gradient(s, gy, group, m, p + a);
      }
    }
    const Patch<__half> patch = patch_of(s, x, group, p0 + t % DEEP);
    Tap tap = first;
#pragma unroll
    for (int a = 0; a < 16; ++a, tap = after(s, tap))
      next_x[a / 8].at[a % 8] = read(s, patch, tap);
  };
  float sum[HIGH][4][4] = {};
  fetch_step(which * share);
  for (int p0 = which * share, now = 0; p0 < end; p0 += DEEP, now ^= 1) {
    for (int h = 0; h < ROWS / 64; ++h)
      *(uint4*)(gs[now] + (t / 4 + 64 * h) * PITCH + t % 4 * 8) = next_g[h].all;
#pragma unroll
    for (int a = 0; a < 16; ++a)
      xs[now][(t / DEEP * 16 + a) * PITCH + t % DEEP] = next_x[a / 8].at[a % 8];
    __syncthreads();  // the buffer is complete, and no thread reads the other buffer any longer
    if (p0 + DEEP < end) fetch_step(p0 + DEEP);
    multiply(sum, gs[now], xs[now]);
  }
  for (int i = 0; i < HIGH; ++i)
    for (int j = 0; j < 4; ++j)
      for (int a = 0; a < 4; ++a) {
        const int m = m0 + row_of(i, a), k = k0 + column_of(j, a);
        if (m < M && k < K)  // guard
          partial[(((long long)which * G + group) * M + m) * K + k] = sum[i][j][a];
      }
}

// This kernel is for groups that read one channel and write one channel. Such a group has U V
// weights. A block computes the gradient of one weight, a sum over all images. Its threads take the
// pixels in turn.
// grid G U V. A block has a multiple of 32 threads.
extern "C" __global__ void conv_weight_depthwise(T* gw, const T* gy, const T* x, SHAPE) {
  __shared__ ACC scratch[33];
  const Shape s = SHAPE_OF_ALL;
  const int group = blockIdx.x / (U * V);
  const Tap tap = tap_of(s, blockIdx.x % (U * V));
  ACC sum = 0;
  for (int p = threadIdx.x; p < N * R * Q; p += blockDim.x)
    sum += to_float(read_gradient(s, gy, group, 0, p))
        * to_float(read(s, patch_of(s, x, group, p), tap));
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) gw[blockIdx.x] = from_float<T>(sum);
}

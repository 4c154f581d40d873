// Matrix product c = a b, to learn why a GPU's fast one is a loop over tiles. Training uses BLAS,
// or on a CPU linear.cu.
//
//             n                a  m x k   b  k x n   c  m x n, all of type T, row by row
//          +-----+
//        k |  b  |             c[i][j] = sum over l of a[i][l] * b[l][j]
//     k    +-----+
//   +----+ +-----+             2 m n k operations on 4 (m k + k n + m n) bytes: much arithmetic
//  m| a  | |  c  |             for each number, if only it is read once. A rung is how often it is:
//   +----+ +-----+
//                                      loads from memory for each element of c, of a and of b
//   v1   a thread an element              k       each
//   v2   tiles in shared memory           k / 16  each
//   v3   64 x 64 a block, 4 x 4 a thread  k / 64  each, and from shared memory k / 4 instead of k
//
// Source: the tiling is in Lam, Rothberg, Wolf 1991 for caches; Volkov & Demmel 2008 for registers
// on GPUs.
// Launch: minidl/fused/matmul.py   Test: tests/fused/test_matmul.py
#include "common.cuh"

#ifndef ACC  // what sums are made in: float for float and half, double for double
#define ACC float
#endif

// v1: a thread per element of c, which reads a row of a and a column of b for itself. Block: any,
// 2-D.
extern "C" __global__ void matmul_v1(T* c, const T* a, const T* b, int m, int n, int k) {
  int j = blockIdx.x * blockDim.x + threadIdx.x;
  int i = blockIdx.y * blockDim.y + threadIdx.y;
  if (i < m && j < n) {  // guard
    ACC sum = 0;
    for (int l = 0; l < k; ++l)
      sum += to_float(a[(long long)i * k + l]) * to_float(b[(long long)l * n + j]);
    c[(long long)i * n + j] = from_float<T>(sum);
  }
}

// v2: the 16 x 16 threads of a block need the same 16 rows of a and 16 columns of b. They go
// through k in steps of 16: each thread fetches one element of either tile, all use all of both. 16
// times fewer loads than v1.
#define TILE 16
extern "C" __global__ void matmul_v2(T* c, const T* a, const T* b, int m, int n, int k) {
  __shared__ ACC as[TILE][TILE], bs[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int i = blockIdx.y * TILE + y, j = blockIdx.x * TILE + x;
  ACC sum = 0;
  for (int l0 = 0; l0 < k; l0 += TILE) {
    // guard: beyond the edges are zeros, which add nothing
    as[y][x] = i < m && l0 + x < k ? to_float(a[(long long)i * k + l0 + x]) : ACC(0);
    bs[y][x] = l0 + y < k && j < n ? to_float(b[(long long)(l0 + y) * n + j]) : ACC(0);
    __syncthreads();  // both tiles are there
    for (int l = 0; l < TILE; ++l) sum += as[y][l] * bs[l][x];
    __syncthreads();  // nobody needs them any more
  }
  if (i < m && j < n) c[(long long)i * n + j] = from_float<T>(sum);
}

// v3: in v2 each multiply-add waits for two loads from shared memory. Here a thread makes 4 x 4
// elements: 8 loads into registers serve 16 multiply-adds. A block makes 64 x 64: 4 times fewer
// loads from memory than v2. Block: 16 x 16. Thread (x, y) owns rows y, y + 16, ... and columns x,
// x + 16, ... of the block's square, so that neighbouring threads read neighbouring elements of bs
// and write neighbouring elements of c.
#define SIDE 64
#define STEP 16
#define EACH 4  // SIDE / 16
extern "C" __global__ void matmul_v3(T* c, const T* a, const T* b, int m, int n, int k) {
  // + 1: the 2 rows that a warp reads at once lie in different banks
  __shared__ ACC as[SIDE][STEP + 1];
  __shared__ ACC bs[STEP][SIDE];
  int x = threadIdx.x, y = threadIdx.y, me = y * 16 + x;
  int i0 = blockIdx.y * SIDE, j0 = blockIdx.x * SIDE;
  ACC sum[EACH][EACH] = {};
  for (int l0 = 0; l0 < k; l0 += STEP) {
    // 256 threads fetch 64 x 16 elements of a and 16 x 64 of b: four of each
    for (int e = me; e < SIDE * STEP; e += 256) {
      int ai = i0 + e / STEP, al = l0 + e % STEP, bl = l0 + e / SIDE, bj = j0 + e % SIDE;
      // guard
      as[e / STEP][e % STEP] = ai < m && al < k ? to_float(a[(long long)ai * k + al]) : ACC(0);
      // guard
      bs[e / SIDE][e % SIDE] = bl < k && bj < n ? to_float(b[(long long)bl * n + bj]) : ACC(0);
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < STEP; ++l) {
      ACC av[EACH], bv[EACH];
#pragma unroll
      for (int r = 0; r < EACH; ++r) {
        av[r] = as[y + 16 * r][l];
        bv[r] = bs[l][x + 16 * r];
      }
#pragma unroll
      for (int r = 0; r < EACH; ++r)
#pragma unroll
        for (int s = 0; s < EACH; ++s) sum[r][s] += av[r] * bv[s];
    }
    __syncthreads();
  }
  for (int r = 0; r < EACH; ++r)
    for (int s = 0; s < EACH; ++s) {
      int i = i0 + y + 16 * r, j = j0 + x + 16 * s;
      if (i < m && j < n) c[(long long)i * n + j] = from_float<T>(sum[r][s]);  // guard
    }
}

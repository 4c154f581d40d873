// Matrix product c = a b. This file shows why a fast product on a GPU is a loop over tiles.
// Training uses BLAS, or cpu/linear.cu on a CPU.
//
//             n                a (m x k), b (k x n) and c (m x n) are of type T, stored row by row
//          +-----+
//        k |  b  |             c[i][j] = sum over l of a[i][l] * b[l][j]
//     k    +-----+
//   +----+ +-----+             The product takes 2 m n k operations, but in float a, b and c have
//  m| a  | |  c  |             only 4 (m k + k n + m n) bytes. So each number is used many times.
//   +----+ +-----+             A faster rung reads each number fewer times.
//
//                                            For each element of c, the number of elements of a
//                                            that are loaded from memory. For b it is the same
//   v1   a thread computes one element         k
//   v2   a block keeps tiles in shared         k / 16
//        memory
//   v3   a block computes 64 x 64 elements,    k / 64. Loads from shared memory: k / 4, in v2 k
//        a thread 4 x 4
//   v4   tensor cores, in half. A block        k / 128
//        computes 128 x 128 elements
//
// Expected share of the peak on a GPU. It is computed, not measured. v1 reaches 5% of the peak of
// the lanes, because it waits for the cache. v2 reaches at most 25%, because it loads two floats
// from shared memory for each multiply-add. v3 loads 8 floats for 16 multiply-adds, and reaches
// about 50%. v4 reaches 50 to 60% of the tensor cores' peak. An SM of an A100 has four quarters. A
// quarter does 256 multiply-adds of halves in a cycle. In a step a warp does 16 mma instructions of
// 2048 multiply-adds, which take 128 cycles. The step also has 6 ldmatrix instructions, which read
// 512 bytes each. A quarter gets 32 bytes a cycle from shared memory, so they take 96 cycles. For a
// larger share, copies must bypass the registers (cp.async), and the fragments must be larger. On
// an H100 the instruction wgmma is needed, because mma reaches only 60% of the peak there.
//
// Source: tiles for caches, Lam, Rothberg, Wolf 1991; tiles in registers on GPUs, Volkov & Demmel
// 2008.
// Launch: minidl/ops/matmul.py   Test: tests/ops/test_matmul_kernel.py
// Exercise: 27c of tutorials/27_convolution.py asks for such a tile and its two barriers
#include "tensor_core.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif

// v1: a thread computes one element of c. The thread reads a row of a and a column of b.
// Block: 2-D, any size.
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

// v2: the 16 x 16 threads of a block share 16 rows of a and 16 columns of b. They go through k in
// steps of 16. In a step each thread loads one element of each tile into shared memory. Then each
// thread uses 16 elements of both tiles. So v2 needs 16 times fewer loads from memory than v1.
#define TILE 16
extern "C" __global__ void matmul_v2(T* c, const T* a, const T* b, int m, int n, int k) {
  __shared__ ACC as[TILE][TILE], bs[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int i = blockIdx.y * TILE + y, j = blockIdx.x * TILE + x;
  ACC sum = 0;
  for (int l0 = 0; l0 < k; l0 += TILE) {
    // guard: elements beyond the edges are 0, so they add nothing
    as[y][x] = i < m && l0 + x < k ? to_float(a[(long long)i * k + l0 + x]) : ACC(0);
    bs[y][x] = l0 + y < k && j < n ? to_float(b[(long long)(l0 + y) * n + j]) : ACC(0);
    __syncthreads();  // both tiles are complete
    for (int l = 0; l < TILE; ++l) sum += as[y][l] * bs[l][x];
    __syncthreads();  // all threads have read both tiles
  }
  if (i < m && j < n) c[(long long)i * n + j] = from_float<T>(sum);
}

// v3: in v2 each multiply-add waits for two loads from shared memory. In v3 a thread computes 4 x 4
// elements of c. So 8 loads from shared memory are enough for 16 multiply-adds. A block computes 64
// x 64 elements, so v3 needs 4 times fewer loads from memory than v2. The block has 16 x 16
// threads. Thread (x, y) computes rows y, y + 16, ... and columns x, x + 16, ... of the block's
// square. So neighbouring threads read neighbouring elements of bs and write neighbouring elements
// of c.
#define SIDE 64
#define STEP 16
#define EACH 4  // SIDE / 16
extern "C" __global__ void matmul_v3(T* c, const T* a, const T* b, int m, int n, int k) {
  // with + 1 a row has 17 elements. So the 2 rows that a warp reads at once lie in different banks
  __shared__ ACC as[SIDE][STEP + 1];
  __shared__ ACC bs[STEP][SIDE];
  int x = threadIdx.x, y = threadIdx.y, me = y * 16 + x;
  int i0 = blockIdx.y * SIDE, j0 = blockIdx.x * SIDE;
  ACC sum[EACH][EACH] = {};
  for (int l0 = 0; l0 < k; l0 += STEP) {
    // 256 threads load 64 x 16 elements of a and 16 x 64 elements of b. Each thread loads four of
    // each.
    for (int e = me; e < SIDE * STEP; e += 256) {
      int ai = i0 + e / STEP, al = l0 + e % STEP, bl = l0 + e / SIDE, bj = j0 + e % SIDE;
      // guard: elements beyond the edges are 0
      as[e / STEP][e % STEP] = ai < m && al < k ? to_float(a[(long long)ai * k + al]) : ACC(0);
      // guard: elements beyond the edges are 0
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

// v4: a tensor core multiplies 16 x 16 by 16 x 8 halves in one instruction of a warp
// (tensor_core.cuh). The eight warps of a block compute 128 x 128 elements of c. Each warp computes
// 64 x 32 elements, from 4 fragments of a and 4 fragments of b. During a step, each thread loads
// the elements of the next step into registers. There are two buffers in shared memory, so one
// barrier in each step is enough.
// Block: 256.
#define BIG 128
#define DEEP 32
// A row of `as` has 80 bytes, and a row of `bs` has 272 bytes. So the 8 rows that ldmatrix reads,
// 16 bytes of each, lie in 8 different groups of 4 banks.
#define A_PITCH (DEEP + 8)
#define B_PITCH (BIG + 8)
extern "C" __global__ void __launch_bounds__(256) matmul_v4(
    __half* c, const __half* a, const __half* b, int m, int n, int k) {
  __shared__ __align__(16) __half as[2][BIG * A_PITCH];
  __shared__ __align__(16) __half bs[2][DEEP * B_PITCH];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const int i0 = blockIdx.y * BIG, j0 = blockIdx.x * BIG;
  const int wi = warp / 4 * 64, wj = warp % 4 * 32;  // the warp's corner in the block's square
  // thread t loads 8 elements of each of these rows: t / 4 and t / 4 + 64 of a, t / 16 and t / 16 +
  // 16 of b
  const int ai = t / 4, al = t % 4 * 8, bl = t / 16, bj = t % 16 * 8;
  const bool a_whole = packs(a, k), b_whole = packs(b, n);
  Pack<__half> next_a[2], next_b[2];
  const auto fetch_step = [&](int l0) {
    for (int h = 0; h < 2; ++h) {
      const int i = i0 + ai + 64 * h, l = l0 + bl + 16 * h;
      next_a[h] = load_pack(a + (long long)i * k + l0 + al, i < m ? k - l0 - al : 0, a_whole);
      next_b[h] = load_pack(b + (long long)l * n + j0 + bj, l < k ? n - j0 - bj : 0, b_whole);
    }
  };
  float sum[4][4][4] = {};
  fetch_step(0);
  for (int l0 = 0, now = 0; l0 < k; l0 += DEEP, now ^= 1) {
    for (int h = 0; h < 2; ++h) {
      *(uint4*)(as[now] + (ai + 64 * h) * A_PITCH + al) = next_a[h].all;
      *(uint4*)(bs[now] + (bl + 16 * h) * B_PITCH + bj) = next_b[h].all;
    }
    __syncthreads();  // the buffer is complete, and no thread reads the other buffer any longer
    if (l0 + DEEP < k) fetch_step(l0 + DEEP);
#pragma unroll
    for (int l = 0; l < DEEP; l += 16) {
      unsigned int af[4][4], bf[2][4];  // fragments: 4 of a, and 4 of b in two pairs
#pragma unroll
      for (int r = 0; r < 4; ++r) load_a(af[r], as[now] + (wi + 16 * r) * A_PITCH + l, A_PITCH);
#pragma unroll
      for (int s = 0; s < 2; ++s) load_b(bf[s], bs[now] + l * B_PITCH + wj + 16 * s, B_PITCH);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int s = 0; s < 4; ++s) mma(sum[r][s], af[r], bf[s / 2] + s % 2 * 2);
    }
  }
  for (int r = 0; r < 4; ++r)
    for (int s = 0; s < 4; ++s)
      for (int x = 0; x < 4; ++x) {
        const int i = i0 + wi + 16 * r + lane / 4 + x / 2 * 8;
        const int j = j0 + wj + 8 * s + lane % 4 * 2 + x % 2;
        if (i < m && j < n) c[(long long)i * n + j] = __float2half(sum[r][s][x]);  // guard
      }
}

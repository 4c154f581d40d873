// Two row kernels of tutorial 03: a block per row, whose threads meet in shared memory. And a matrix
// transposed. Lessons, not used in training; kernels/layer_norm.cu and softmax.cu are.
//
//   center           y = x - mean of its row
//                    bytes an element: 2 reads, 1 write: 12
//   softmax_online   y = e^(x - m) / sum of e^(x - m)
//                    2 reads, 1 write: 12; with a loop more for m, 16
//   transpose_*        out = in^T, n x n: 1 read, 1 write: 8, in good and in bad requests
//
//   x, y   rows x cols of float. One block per row, blockDim.x a power of two, 4 and 8 bytes of
//          shared memory a thread.
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured; how: gelu.cu):
// the tree's barriers leave a block of 256 with a few reads on the way: 40 to 60%.
//
// Source: Harris, "Optimizing Parallel Reduction in CUDA" (2007), for the tree; Milakov &
// Gimelshein (2018) for the softmax.
// Test: tests/tutorials/test_exercises.py   Tutorial: tutorials/03_kernel_tour.py
#include "common.cuh"

extern "C" __global__ void center(float* y, const float* x, int cols) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  const float* row = x + blockIdx.x * cols;
  float mine = 0;
  for (int j = t; j < cols; j += blockDim.x) mine += row[j];
  // >>> exercise 03a: a sum over the block
  // Afterwards s[0] must be the sum of `mine` over all threads of the block, for all of them to
  // read.
  //     s  0 1 2 3 4 5 6 7      each thread puts `mine` into s[t]; then, in each step, the first
  //                             half of what is left adds
  //        0 1 2 3 < - - -      the second half to itself: s[t] += s[t + d] for t < d, with d =
  //                             blockDim.x / 2, ..., 2, 1
  //        0 1 < -              Between what one thread writes and another reads there must be a
  //                             __syncthreads(), which
  //        0 <                  every thread of the block must reach: never inside an `if (t < d)`.
  s[t] = mine;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d /= 2) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();
  }
  // <<<
  for (int j = t; j < cols; j += blockDim.x) y[blockIdx.x * cols + j] = row[j] - s[0] / cols;
}

extern "C" __global__ void softmax_online(float* y, const float* x, int cols) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  const float* row = x + blockIdx.x * cols;
  float *ms = s, *sums = s + blockDim.x;
  // of this thread's elements: the largest; the sum of e^(row[j] - m)
  float m = -INFINITY, sum = 0;
  // >>> exercise 03b: online softmax
  // One loop over this thread's elements, j = t, t + blockDim.x, ... below cols, that keeps m and
  // sum right after every element, so that row is read once. When row[j] is above m, the sum so far
  // has the wrong m in it: bring it to the new one, e^(x - new) = e^(x - old) * e^(old - new).
  // expf(-INFINITY) is 0. Exponents above 0 would overflow for large x.
  for (int j = t; j < cols; j += blockDim.x) {
    float v = row[j];
    if (v > m) {
      sum *= expf(m - v);
      m = v;
    }
    sum += expf(v - m);
  }
  // <<<
  ms[t] = m, sums[t] = sum;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d /= 2) {  // the same step between two threads' results
    if (t < d && sums[t + d] > 0) {
      float top = fmaxf(ms[t], ms[t + d]);
      sums[t] = sums[t] * expf(ms[t] - top) + sums[t + d] * expf(ms[t + d] - top);
      ms[t] = top;
    }
    __syncthreads();
  }
  for (int j = t; j < cols; j += blockDim.x)
    y[blockIdx.x * cols + j] = expf(row[j] - ms[0]) / sums[0];
}

// out (n x n) = in^T, blocks of 32 x 32 threads. A warp is a row of a block: 32 neighbours in x.
// naive: it reads 32 neighbours, 4 sectors of 32 bytes, and writes 32 numbers n apart, 32 sectors.
extern "C" __global__ void transpose_naive(float* out, const float* in, int n) {
  int i = blockIdx.y * 32 + threadIdx.y, j = blockIdx.x * 32 + threadIdx.x;
  if (i < n && j < n) out[j * n + i] = in[i * n + j];  // guard
}

// Through shared memory: both touch neighbours in global memory, and the tile is read by columns.
// Word k lies in bank k mod 32: a column of a tile 32 words wide is one bank, its 32 threads are
// served one after the other; 33 wide (PAD 1) it lies in 32 banks.
#ifndef PAD
#define PAD 1
#endif
extern "C" __global__ void transpose_tile(float* out, const float* in, int n) {
  __shared__ float tile[32][32 + PAD];
  int i = blockIdx.y * 32 + threadIdx.y, j = blockIdx.x * 32 + threadIdx.x;
  if (i < n && j < n) tile[threadIdx.y][threadIdx.x] = in[i * n + j];  // guard
  __syncthreads();
  i = blockIdx.x * 32 + threadIdx.y, j = blockIdx.y * 32 + threadIdx.x;
  if (i < n && j < n) out[i * n + j] = tile[threadIdx.x][threadIdx.y];  // guard
}

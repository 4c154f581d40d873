// Lessons of tutorial 03. In two kernels a block takes a row, and its threads exchange results in
// shared memory. The other kernels transpose a matrix. Training uses layer_norm.cu and softmax.cu.
//
//   center           y = x - mean of its row. Reads x twice, writes y: 12 bytes for each element
//   softmax_online   y = e^(x - m) / sum of e^(x - m), with m = the maximum of the row. Reads x
//                    twice, writes y: 12 bytes. With a separate loop for m it moves 16 bytes
//   transpose_*      out = in^T, n x n. Reads in, writes out: 8 bytes for each element. The two
//                    kernels differ in the memory requests of a warp
//
//   x, y   rows x cols of float. A block takes a row. blockDim.x is a power of two. Shared memory:
//          4 bytes for each thread in center, 8 bytes for each thread in softmax_online.
//
// Expected share of a copy's bandwidth on a GPU: 40 to 60%. It is computed, not measured (gelu.cu
// shows how). Threads wait at the barriers of the tree reduction, with few reads in flight.
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
  // Afterwards s[0] must hold the sum of `mine` over all threads of the block, and every thread
  // must be able to read it.
  //     s  0 1 2 3 4 5 6 7      Each thread writes `mine` to s[t].
  //                             Then, in each step, half of the threads add:
  //        0 1 2 3 < - - -      s[t] += s[t + d] for t < d, with d = blockDim.x / 2, ..., 2, 1.
  //
  //        0 1 < -              Put a __syncthreads() between the write of one thread and the read
  //                             of another.
  //        0 <                  Every thread must reach it: never put it inside an `if (t < d)`.
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
  // m: the maximum of this thread's elements. sum: the sum of e^(row[j] - m) over them
  float m = -INFINITY, sum = 0;
  // >>> exercise 03b: online softmax
  // Write one loop over this thread's elements: j = t, t + blockDim.x, ... below cols. m and sum
  // must be correct after every element, so the row is read only once. If row[j] is larger than m,
  // the sum so far was made with the old m. Correct it: e^(x - new) = e^(x - old) * e^(old - new).
  // expf(-INFINITY) is 0. Keep every exponent at or below 0: a positive one overflows for large x.
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
  for (int d = blockDim.x / 2; d > 0; d /= 2) {  // joins the results of two threads
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

// out (n x n) = in^T, in blocks of 32 x 32 threads. A warp is a row of a block. A warp reads 32
// neighbours, which lie in 4 sectors of 32 bytes. It writes 32 numbers, which lie in 32 sectors.
extern "C" __global__ void transpose_naive(float* out, const float* in, int n) {
  int i = blockIdx.y * 32 + threadIdx.y, j = blockIdx.x * 32 + threadIdx.x;
  if (i < n && j < n) out[j * n + i] = in[i * n + j];  // guard
}

// With a tile in shared memory, a warp reads and writes neighbours in global memory. It reads a
// column of the tile. Word k of shared memory lies in bank k mod 32. If the tile is 32 words wide,
// a column lies in one bank, so its 32 words are read one after the other. If the tile is 33 words
// wide (PAD 1), a column lies in 32 banks, and its words are read at once.
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

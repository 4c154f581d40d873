// The norm of many arrays, as if they were one vector. It is used to clip gradients.
//
//   sum_squares   partial[chunk] = sum of g^2 over the chunk
//                 reads each element once: 4 bytes in float
//
// The sum has two stages, because the blocks of a launch cannot wait for each other. First, each
// block writes the sum of its chunk, in float (in double if the arrays are in double). Then the
// array library adds these few numbers in double, or chunk_sums adds them for each array. The order
// of additions is fixed, so the bits are the same in every run.
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// A thread reads 16 bytes in each step and writes almost nothing, which gives 90%. In arrays much
// shorter than a chunk some threads have no work.
//
// Rungs: in _blocks each block takes a chunk. _many does the same with 16 bytes in each access.
// cpu/grad_norm.cu runs on a CPU.
// Wrapper: minidl/cuda/grad_norm.py   Test: tests/cuda/test_grad_norm.py
#include "common.cuh"

#ifndef ACC  // the type of the arithmetic: float, or double for double
#define ACC float
#endif

extern "C" __global__ void sum_squares_blocks(ACC* partial, const T* const* gs,
                                              const long long* chunks, int n_chunks) {
  __shared__ ACC scratch[33];
  int c = blockIdx.x;
  const T* g = gs[chunks[3 * c]];
  long long begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
  ACC sum = 0;
  for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
    ACC x = to_float(g[i]);
    sum += x * x;
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[c] = sum;
}

extern "C" __global__ void sum_squares_many(ACC* partial, const T* const* gs,
                                            const long long* chunks, int n_chunks) {
  __shared__ ACC scratch[33];
  int c = blockIdx.x;
  const T* g = gs[chunks[3 * c]];
  const long long begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
  const bool whole = packs(g + begin);
  ACC sum = 0;
  for (long long i = begin + PACK(T) * threadIdx.x; i < end; i += PACK(T) * blockDim.x) {
    const Pack<T> pack = load_pack(g + i, end - i, whole);  // zeros after the end
    for (int k = 0; k < PACK(T); ++k) {
      ACC x = to_float(pack.at[k]);
      sum += x * x;
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[c] = sum;
}

// sums (arrays, width) = the sums of `partial` (chunks, width) over the chunks of each array, in
// double. Array a has the chunks first[a] to first[a + 1] - 1. In chunk_sums a thread computes one
// sum. In chunk_sums_many a block computes one sum, and each of its 256 threads adds every 256th
// chunk.
extern "C" __global__ void chunk_sums(double* sums, const ACC* partial, const long long* first,
                                      int width, int n_arrays) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n_arrays * width) {  // guard
    int a = i / width, column = i % width;
    double sum = 0;
    for (long long c = first[a]; c < first[a + 1]; ++c) sum += partial[c * width + column];
    sums[i] = sum;
  }
}

extern "C" __global__ void chunk_sums_many(double* sums, const ACC* partial,
                                           const long long* first, int width, int n_arrays) {
  __shared__ double scratch[33];
  int a = blockIdx.x / width, column = blockIdx.x % width;
  double sum = 0;
  for (long long c = first[a] + threadIdx.x; c < first[a + 1]; c += blockDim.x)
    sum += partial[c * width + column];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The norm of many arrays as one vector, for clipping gradients by it.
//
//   sum_squares   partial[chunk] = sum of g^2 over the chunk
//                 reads 1: 4 bytes an element in float
//
// Two stages, because blocks cannot wait for each other: every chunk leaves one number, in float
// (double for double), and the array library adds those few up in double; or chunk_sums does, for
// each array by itself. The order of additions is fixed, so the bits are.
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured; how: gelu.cu):
// 16 bytes a thread and step, reads alone: 90%; arrays much shorter than a chunk leave threads
// without work.
//
// Rungs: _blocks, a block per chunk; _many, the same with 16 bytes an access. On a CPU:
// cpu/grad_norm.cu
// Wrapper: minidl/cuda/grad_norm.py   Test: tests/cuda/test_grad_norm.py
#include "common.cuh"

#ifndef ACC  // what T is computed in: float, or double for double
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
    const Pack<T> pack = load_pack(g + i, end - i, whole);  // zeros behind the end
    for (int k = 0; k < PACK(T); ++k) {
      ACC x = to_float(pack.at[k]);
      sum += x * x;
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[c] = sum;
}

// The chunks' numbers, (chunks, width), added up for each array: array a has chunks first[a] to
// first[a + 1]. In double and in order. _many: a block for each sum, a thread for every 256th chunk.
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

// Copies many arrays into one flat buffer and back, on a CPU. Each thread takes one chunk, and its
// loop uses vectors.
// Formula and parameters: ../pack.cu
// Wrapper: minidl/parallel/data/flat.py   Test: tests/parallel/data/test_flat_kernel.py
#include "loops.cuh"

#ifndef U  // element type of the flat buffer
#define U float
#endif

extern "C" __global__ void pack_chunks(U* flat, const T* const* arrays, const long long* first,
                                       const long long* chunks,
                                       int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    const T* from = arrays[a];
    U* to = flat + first[a];
    SIMD for (long long i = begin; i < end; ++i) to[i] = from_float<U>(to_float(from[i]));
  }
}

extern "C" __global__ void unpack_chunks(T* const* arrays, const U* flat, const long long* first,
                                         const long long* chunks,
                                         int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    const U* from = flat + first[a];
    T* to = arrays[a];
    SIMD for (long long i = begin; i < end; ++i) to[i] = from_float<T>(to_float(from[i]));
  }
}

// Many arrays into one flat buffer and back, with a cast on the way: what a bucket of gradients
// needs before it is sent.
//
//   pack     flat[first[a] + i] = arrays[a][i]        T -> U
//   unpack   arrays[a][i] = flat[first[a] + i]        U -> T
//
//   arrays of T, flat of U; sizes any. sizeof(T) + sizeof(U) bytes an element: 8 in float, 6 from
//   half to float.
//   first: where each array begins in flat. Chunks and tables: see minidl/fused/launch.py
//
// Rungs: _chunks, a thread per chunk (a CPU's vector loop); _many, a block per chunk (a GPU's).
// Wrapper: minidl/fused/pack.py   Test: tests/fused/test_pack.py
#include "common.cuh"

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

extern "C" __global__ void pack_many(U* flat, const T* const* arrays, const long long* first,
                                     const long long* chunks,
                                     int n_chunks) {
  long long a = chunks[3 * blockIdx.x], end = chunks[3 * blockIdx.x + 2];
  for (long long i = chunks[3 * blockIdx.x + 1] + threadIdx.x; i < end; i += blockDim.x)
    flat[first[a] + i] = from_float<U>(to_float(arrays[a][i]));
}

extern "C" __global__ void unpack_many(T* const* arrays, const U* flat, const long long* first,
                                       const long long* chunks,
                                       int n_chunks) {
  long long a = chunks[3 * blockIdx.x], end = chunks[3 * blockIdx.x + 2];
  for (long long i = chunks[3 * blockIdx.x + 1] + threadIdx.x; i < end; i += blockDim.x)
    arrays[a][i] = from_float<T>(to_float(flat[first[a] + i]));
}

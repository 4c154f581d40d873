// Copies many arrays into one flat buffer, and back, with a cast. A bucket of gradients is packed
// in this way before it is sent.
//
//   pack     flat[first[a] + i] = arrays[a][i]        T -> U
//   unpack   arrays[a][i] = flat[first[a] + i]        U -> T
//
//   arrays of T, flat of U, any sizes. sizeof(T) + sizeof(U) bytes an element: 8 in float, 6 from
//   half to float.
//   first: where each array begins in flat. Chunks and tables: minidl/cuda/launch.py
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// The kernel is a copy, with eight elements a thread in accesses of 16 bytes, which gives 90%. An
// array may begin in the flat buffer at an address that is no multiple of 16. Then its part of the
// buffer is read or written element by element: 50 to 70% in half.
//
// Rungs: _blocks gives a chunk to each block. _many does the same with 16 bytes an access. On a
// CPU: cpu/pack.cu
// Wrapper: minidl/parallel/data/flat.py   Test: tests/parallel/data/test_flat_kernel.py
#include "common.cuh"

#ifndef U  // element type of the flat buffer
#define U float
#endif

// One block per chunk. Neighbouring threads take neighbouring elements.
extern "C" __global__ void pack_blocks(U* flat, const T* const* arrays, const long long* first,
                                       const long long* chunks,
                                       int n_chunks) {
  int c = blockIdx.x;
  long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
  const T* from = arrays[a];
  U* to = flat + first[a];
  for (long long i = begin + threadIdx.x; i < end; i += blockDim.x)
    to[i] = from_float<U>(to_float(from[i]));
}

extern "C" __global__ void unpack_blocks(T* const* arrays, const U* flat, const long long* first,
                                         const long long* chunks,
                                         int n_chunks) {
  int c = blockIdx.x;
  long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
  const U* from = flat + first[a];
  T* to = arrays[a];
  for (long long i = begin + threadIdx.x; i < end; i += blockDim.x)
    to[i] = from_float<T>(to_float(from[i]));
}

// The threads of a block copy to[i] = from[i] for begin <= i < end: eight elements each, 16 bytes
// an access. `to` and `from` may be aligned differently, because an array begins anywhere in the
// flat buffer.
template <typename To, typename From>
__device__ __forceinline__ void copy_packs(To* to, const From* from, long long begin,
                                           long long end) {
  const bool to_whole = packs(to + begin), from_whole = packs(from + begin);
  for (long long i = begin + 8 * threadIdx.x; i < end; i += 8 * blockDim.x) {
    const int n = end - i < 8 ? end - i : 8;
    decltype(to_float(From(0.0f))) x[8];  // double stays double
    for (int k0 = 0; k0 < 8; k0 += PACK(From)) {
      const Pack<From> pack = load_pack(from + i + k0, n - k0, from_whole);
      for (int k = 0; k < PACK(From); ++k) x[k0 + k] = to_float(pack.at[k]);
    }
    for (int k0 = 0; k0 < 8; k0 += PACK(To)) {
      Pack<To> pack;
      for (int k = 0; k < PACK(To); ++k) pack.at[k] = from_float<To>(x[k0 + k]);
      store_pack(to + i + k0, pack, n - k0, to_whole);
    }
  }
}

extern "C" __global__ void pack_many(U* flat, const T* const* arrays, const long long* first,
                                     const long long* chunks,
                                     int n_chunks) {
  const long long a = chunks[3 * blockIdx.x];
  copy_packs(flat + first[a], arrays[a], chunks[3 * blockIdx.x + 1], chunks[3 * blockIdx.x + 2]);
}

extern "C" __global__ void unpack_many(T* const* arrays, const U* flat, const long long* first,
                                       const long long* chunks,
                                       int n_chunks) {
  const long long a = chunks[3 * blockIdx.x];
  copy_packs(arrays[a], flat + first[a], chunks[3 * blockIdx.x + 1], chunks[3 * blockIdx.x + 2]);
}

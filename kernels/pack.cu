// Copies many arrays into one flat buffer, and back, with a cast. Data parallel training packs a
// bucket of gradients in this way before it sends them.
//
//   pack     flat[first[a] + i] = arrays[a][i]        T -> U
//   unpack   arrays[a][i] = flat[first[a] + i]        U -> T
//
//   The arrays have type T and any sizes, flat has type U. first: where each array begins in flat.
//   minidl/cuda/launch.py explains chunks and tables
//   Bytes that are moved for each element: sizeof(T) + sizeof(U). From float to float these are 8,
//   from half to float 6
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// The kernels only copy. In _many a thread copies eight elements, with 16 bytes in each access,
// which gives 90%. In the flat buffer an array may begin at an address that is not a multiple of
// 16. Then its part of the buffer is read or written element by element, which gives 50 to 70% in
// half.
//
// Rungs: in _blocks each block takes a chunk. _many does the same with 16 bytes in each access.
// cpu/pack.cu runs on a CPU.
// Wrapper: minidl/parallel/data/flat.py   Test: tests/parallel/data/test_flat_kernel.py
#include "common.cuh"

#ifndef U  // element type of the flat buffer
#define U float
#endif

// Each block takes one chunk. Neighbouring threads take neighbouring elements.
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

// The threads of a block copy to[i] = from[i] for begin <= i < end. A thread copies eight elements
// at a time, with 16 bytes in each access. If `to` or `from` is not aligned to 16 bytes, it is
// accessed element by element.
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

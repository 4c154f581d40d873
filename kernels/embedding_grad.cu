// Gradient of an embedding: adds each row of gy to the table row that it was read from.
//
//   out[v] = sum of gy[t] over all t with index[t] = v
//   gy (n, width) T, out (vocabulary, width) ACC
//   reads gy and the indices once, writes the rows that occur: 8 bytes an element of gy in float,
//   and also the zeroing of the table
//
// Several t may meet at one row. Ways to keep their sums whole (a CPU has another:
// cpu/embedding_grad.cu):
//   embedding_grad_atomic    a thread per element of gy, atomicAdd: simple, but the order of
//                            additions is left to chance, and so are the last bits
//   embedding_grad_owners    the first t of each row owns it, and a thread per (owner, column) looks
//                            at the indices behind t for others: n reads of 8 bytes, from the
//                            caches, for each distinct row. Always the same order, parallel enough
//                            for a GPU; and nothing is sorted, for which the host would have to wait
//   embedding_grad_packs     the same with 16 bytes an access
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured; how: gelu.cu):
// _owners reads one element of gy a thread, in rows that lie anywhere: a row of 768 halves is 12
// whole requests, so 50% in float, 25 to 30% in half. _packs: 3 requests of 512 bytes, 60 to 70% of
// the time in which gy moves. The walk over the indices behind the owner adds n steps of one cached
// read for each distinct row, side by side: for 8192 positions and 2000 distinct rows of 768 about as
// long as _owners' sums, in _packs a quarter or an eighth of it; with more positions it is the longer
// part.
// Wrapper: minidl/ops/embedding.py   Test: tests/ops/test_embedding_kernel.py
#include "common.cuh"

#ifndef ACC  // half is summed in float
#define ACC float
#endif

// out must be zeros.
extern "C" __global__ void embedding_grad_atomic(ACC* out, const T* gy, const long long* index,
                                                 int n, int width) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < width)  // guard
    for (int t = blockIdx.y; t < n; t += gridDim.y)
      atomicAdd(&out[index[t] * width + col], (ACC)to_float(gy[(long long)t * width + col]));
}

// first: for each row of the table, the first t that reads it, or n if none does.
extern "C" __global__ void embedding_grad_first(int* first, const long long* index, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < n)  // guard
    atomicMin(&first[index[t]], t);
}

// The share of a thread: N columns. out must be zeros; first is of embedding_grad_first.
template <int N>
__device__ __forceinline__ void add_owned(ACC* out, const T* gy, const long long* index,
                                          const int* first, int col, int n, int width) {
  const bool whole = packs(gy, width) && packs(out, width);
  for (int owner = blockIdx.y; owner < n; owner += gridDim.y) {
    long long row = index[owner];
    if (first[row] != owner) continue;  // another's
    ACC sum[N] = {0};
    for (int t = owner; t < n; ++t)
      if (index[t] == row) {
        ACC g[N];
        take<N>(g, gy + (long long)t * width, col, width, whole);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] += g[k];
      }
    put<N>(out + row * width, sum, col, width, whole);
  }
}

extern "C" __global__ void embedding_grad_owners(ACC* out, const T* gy, const long long* index,
                                                 const int* first, int n, int width) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < width)  // guard
    add_owned<1>(out, gy, index, first, col, n, width);
}

// A thread takes 16 bytes of each row; the indices are walked along by a quarter of the threads, in
// half by an eighth.
extern "C" __global__ void embedding_grad_packs(ACC* out, const T* gy, const long long* index,
                                                const int* first, int n, int width) {
  int col = PACK(T) * (blockIdx.x * blockDim.x + threadIdx.x);
  if (col < width)  // guard
    add_owned<PACK(T)>(out, gy, index, first, col, n, width);
}

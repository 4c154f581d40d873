// Gradient of an embedding: adds row t of gy to row index[t] of the table's gradient.
//
//   out[v] = sum of gy[t] over all t with index[t] = v
//   gy (n, width) T, out (vocabulary, width) ACC
//   In float, the kernels read 4 bytes for each element of gy, and write at most 4 bytes: each row
//   whose number is in index is written once. Before the launch, out must be filled with zeros
//
// Several t may have the same index, and then several rows of gy are added to one row of out. No
// addition may be lost. Three kernels for a GPU do this in three ways, and cpu/embedding_grad.cu in
// a fourth way.
//   embedding_grad_atomic    A thread adds one element of gy with atomicAdd. This is simple, but
//                            the order of additions changes from run to run, and so do the last
//                            bits
//   embedding_grad_owners    The first t with an index owns this row of out. A block for each owner
//                            searches the indices after t for the same index, 256 at a time, and
//                            adds these rows of gy. The order of additions is always the same.
//                            Nothing is sorted, so the host does not have to wait
//   embedding_grad_packs     As _owners, with 16 bytes in each access
//
// Expected share of a copy's bandwidth on a GPU, without the search. It is computed, not measured
// (gelu.cu shows how). In _owners each thread reads one element of gy. So a warp reads 128 bytes at
// once in float, and 64 bytes in half. This gives 50% in float, and 25 to 30% in half. In _packs a
// warp reads 512 bytes at once, which gives 60 to 70%. The search adds n / 256 steps for each
// distinct row, and about 1000 blocks search at the same time.
// Measured on an H100 (8192 x 768 float, 2000 distinct rows): _atomic takes 20 us, _owners 159 us,
// _packs 77 us. When each thread searched alone, _owners and _packs took 2850 and 1100 us.
// Wrapper: minidl/ops/embedding.py   Test: tests/ops/test_embedding_kernel.py
#include "common.cuh"

#ifndef ACC  // half is summed in float
#define ACC float
#endif

// Before the launch, out must be filled with zeros.
extern "C" __global__ void embedding_grad_atomic(ACC* out, const T* gy, const long long* index,
                                                 int n, int width) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < width)  // guard
    for (int t = blockIdx.y; t < n; t += gridDim.y)
      atomicAdd(&out[index[t] * width + col], (ACC)to_float(gy[(long long)t * width + col]));
}

// first: for each row of the table, the smallest t with index[t] = row. If there is none, n.
extern "C" __global__ void embedding_grad_first(int* first, const long long* index, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < n)  // guard
    atomicMin(&first[index[t]], t);
}

// A thread adds N columns of gy. The threads of a block search the indices together. Each thread
// compares one index with the owner's index, and a ballot packs 32 answers into one word. Then all
// threads add the rows of gy that were found, in the order of t. embedding_grad_first has computed
// `first`.
template <int N>
__device__ __forceinline__ void add_owned(ACC* out, const T* gy, const long long* index,
                                          const int* first, int col, int n, int width) {
  __shared__ unsigned found[32];  // a word for each warp of the block
  const bool whole = packs(gy, width) && packs(out, width);
  const int warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  for (int owner = blockIdx.y; owner < n; owner += gridDim.y) {
    const long long row = index[owner];
    if (first[row] != owner) continue;  // another t owns this row: the whole block skips it
    ACC sum[N] = {0};
    for (int begin = owner; begin < n; begin += blockDim.x) {
      const int mine = begin + threadIdx.x;
      const unsigned same = __ballot_sync(0xffffffffu, mine < n && index[mine] == row);
      if (threadIdx.x % 32 == 0) found[warp] = same;
      __syncthreads();
      for (int w = 0; w < n_warps; ++w)
        for (unsigned bits = found[w]; bits; bits &= bits - 1) {  // from the lowest bit upwards
          const int t = begin + 32 * w + __ffs(bits) - 1;
          ACC g[N];
          if (col < width) {
            take<N>(g, gy + (long long)t * width, col, width, whole);
#pragma unroll
            for (int k = 0; k < N; ++k) sum[k] += g[k];
          }
        }
      __syncthreads();
    }
    if (col < width) put<N>(out + row * width, sum, col, width, whole);  // guard
  }
}

extern "C" __global__ void embedding_grad_owners(ACC* out, const T* gy, const long long* index,
                                                 const int* first, int n, int width) {
  add_owned<1>(out, gy, index, first, blockIdx.x * blockDim.x + threadIdx.x, n, width);
}

// A thread adds 16 bytes of each row.
extern "C" __global__ void embedding_grad_packs(ACC* out, const T* gy, const long long* index,
                                                const int* first, int n, int width) {
  const int col = PACK(T) * (blockIdx.x * blockDim.x + threadIdx.x);
  add_owned<PACK(T)>(out, gy, index, first, col, n, width);
}

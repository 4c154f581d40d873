// Finds the large elements of a vector, |x| >= threshold, and writes them as (index, value) pairs
// in order of index. Gradient compression (minidl/parallel/data/dgc.py) sends the pairs and keeps
// the other elements for the next step.
//
//   count_above   counts[chunk] = the number of elements of the chunk with |x| >= threshold. In
//                 float it reads 4 bytes for each element
//   compact       writes index and value of these large elements, from position first[chunk] on. It
//                 reads 4 bytes for each element, and writes 8 bytes for each large element
//   Between the two kernels the array library adds up the counts: first = 0, counts[0],
//   counts[0] + counts[1], ...
//   drop          x = 0 where |x| >= threshold. The other elements are kept for the next step. It
//                 reads 4 bytes and writes 4 bytes for each element
//
//   x   n elements of T, in chunks of `length` elements
// Rungs: in the first rung a thread takes a chunk, and writes one large element after another. In
// _warps a warp takes a chunk. A ballot tells each lane how many lanes before it have a large
// element. So 32 elements find their places at once, and their order does not change.
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// In _warps a warp reads 32 elements, then it waits for a ballot. So only 8 KB are in flight in an
// SM. An H100 needs 15 KB, so _warps reaches 50%.
// Source: Lin et al. 2018 (arXiv 1712.01887).
// Wrapper: minidl/parallel/data/topk_mask.py   Test: tests/parallel/data/test_topk_mask.py
#include "topk_mask.cuh"

extern "C" __global__ void count_above(int* counts, const T* x, float threshold, int n, int length,
                                       int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    int begin = c * length, end = min(n - begin, length) + begin, count = 0;
    for (int i = begin; i < end; ++i) count += is_large(x[i], threshold);
    counts[c] = count;
  }
}

extern "C" __global__ void compact(int* index, T* value, const T* x, const int* first,
                                   float threshold, int n, int length, int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    int begin = c * length, end = min(n - begin, length) + begin, at = first[c];
    for (int i = begin; i < end; ++i)
      if (is_large(x[i], threshold)) {
        index[at] = i;
        value[at++] = x[i];
      }
  }
}

extern "C" __global__ void drop(T* x, float threshold, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    x[i] = from_float<T>(is_large(x[i], threshold) ? 0.0f : to_float(x[i]));
}

// ---- one warp for each chunk; a block has a multiple of 32 threads ----

extern "C" __global__ void count_above_warps(int* counts, const T* x, float threshold, int n,
                                             int length, int n_chunks) {
  int c = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (c >= n_chunks) return;  // guard: whole warps leave
  int begin = c * length, end = min(n - begin, length) + begin, count = 0;
  for (int i = begin + lane; i < end; i += 32) count += is_large(x[i], threshold);
  count = warp_sum(count);
  if (lane == 0) counts[c] = count;
}

extern "C" __global__ void compact_warps(int* index, T* value, const T* x, const int* first,
                                         float threshold, int n, int length, int n_chunks) {
  int c = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (c >= n_chunks) return;  // guard: whole warps leave
  int begin = c * length, end = min(n - begin, length) + begin, at = first[c];
  for (int base = begin; base < end; base += 32) {
    int i = base + lane;
    bool keep = i < end && is_large(x[i], threshold);
    unsigned int mask = __ballot_sync(0xffffffffu, keep);
    if (keep) {
      int place = at + __popc(mask & ((1u << lane) - 1));  // after the elements of lower lanes
      index[place] = i;
      value[place] = x[i];
    }
    at += __popc(mask);
  }
}

// Dropout, with random numbers that are never stored.
//
//   out_i = x_i keep_i scale   keep_i = 1 if draw_i >= threshold, else 0
//                            threshold = ceil(p 2^32), scale = 1 / (1 - p)
//   draw_i: draw i of the generator (seed, stream) at `counter`. Backward calls dropout on gy and
//   draws the same numbers again.
//
//   out, x   n elements of type T. In float, an element of x is read and an element of out is
//            written: 8 bytes. A mask in memory needs 2 bytes more, one to write it and one to read
//            it. A chain of array operations moves about 40 bytes for each element
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured. The ten rounds of
// the cipher take about 250 instructions for eight elements. An H100's SM runs 128 instructions in
// a cycle, which is enough for four elements. In a cycle the SM can move 15 bytes from and to
// memory: two elements in float, four in half. This gives 90% in float and 80% in half.
// dropout_naive needs eight times as many instructions, which gives 15 to 25%.
//
// Rungs: in dropout_naive a thread computes one element. It runs the cipher, which makes eight
// draws, and uses one of them. In dropout a thread computes eight elements. cpu/dropout.cu runs on
// a CPU.
// Wrapper: minidl/ops/dropout.py   Test: tests/ops/test_dropout_kernel.py
#include "dropout.cuh"

extern "C" __global__ void dropout_naive(T* out, const T* x, int n, unsigned long long seed,
                                         unsigned long long stream, unsigned long long counter,
                                         unsigned int threshold, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = from_float<T>(to_float(x[i])
                           * kept(random_bits(seed, stream, counter, i), threshold, scale));
}

// A thread computes eight elements, with one run of the cipher. There are n8 = ceil(n / 8) threads.
extern "C" __global__ void dropout(T* out, const T* x, int n, int n8, unsigned long long seed,
                                   unsigned long long stream, unsigned long long counter,
                                   unsigned int threshold, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n8) {  // guard
    unsigned int draws[8];
    philox(counter + i, seed, stream, draws);
    out += 8 * i, x += 8 * i;
    // A thread reads its eight elements in packs of 16 bytes. So the warp uses every byte of each
    // cache line that it fetches.
    const int size = PACK(T);
    const bool whole = packs(x) && packs(out);
    for (int k0 = 0; k0 < 8; k0 += size) {
      Pack<T> pack = load_pack(x + k0, n - 8 * i - k0, whole);
#pragma unroll
      for (int k = 0; k < size; ++k)
        pack.at[k] = from_float<T>(to_float(pack.at[k]) * kept(draws[k0 + k], threshold, scale));
      store_pack(out + k0, pack, n - 8 * i - k0, whole);
    }
  }
}

// LAMB on a CPU. In both passes each thread takes one chunk, and its loop uses vectors.
// Formula: ../lamb.cuh   Parameters: lamb_moments_many and lamb_update_many of ../lamb.cu
// Wrapper: minidl/optim/lamb.py   Test: tests/optim/test_lamb_kernel.py
#include "lamb.cuh"
#include "loops.cuh"

extern "C" __global__ void lamb_moments_chunks(W* partial, const W* const* ws, const T* const* gs,
                                               W* const* ms, W* const* vs, const W* rates,
                                               const int* skip, const W* factor, W b1,
                                               W one_minus_b1, W b2, W one_minus_b2, W inside,
                                               W outside, W decay, W unscale,
                                               const long long* chunks, int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    const W* w = ws[a];
    W *m = ms[a], *v = vs[a];
    const T* g = gs[a];
    const W first = rates[2 * a], root = rates[2 * a + 1];
    W w2 = 0, r2 = 0;
    if (factor) unscale *= *factor;
    if (!(skip && *skip)) {
      SIMD_SUM(w2, r2) for (long long i = begin; i < end; ++i) {
        const W x = w[i], grad = to_float(g[i]) * unscale;
        const W average = b1 * m[i] + one_minus_b1 * grad;
        const W square = b2 * v[i] + one_minus_b2 * grad * grad;
        m[i] = average;
        v[i] = square;
        const W r = direction(x, average, square, first, root, inside, outside, decay);
        w2 += x * x;
        r2 += r * r;
      }
    }
    partial[2 * c] = w2;
    partial[2 * c + 1] = r2;
  }
}

extern "C" __global__ void lamb_update_chunks(W* const* ws, const W* const* ms, const W* const* vs,
                                              T* const* lows, const W* rates, const int* skip,
                                              W inside, W outside, W decay,
                                              const long long* chunks, int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    W* w = ws[a];
    const W *m = ms[a], *v = vs[a];
    const W first = rates[3 * a], root = rates[3 * a + 1], step = rates[3 * a + 2];
    SIMD for (long long i = begin; i < end; ++i)
      w[i] -= step * direction(w[i], m[i], v[i], first, root, inside, outside, decay);
    if (lows) {
      T* low = lows[a];
      SIMD for (long long i = begin; i < end; ++i) low[i] = from_float<T>(w[i]);
    }
  }
}

// AdamW and Adam on a CPU: many arrays in one launch. Each thread takes one chunk, and its loop
// uses vectors.
// Formula: ../adamw.cuh   Parameters: adamw_many of ../adamw.cu
// Wrapper: minidl/optim/adam.py   Test: tests/optim/test_adam_kernel.py
#include "adamw.cuh"
#include "loops.cuh"

extern "C" __global__ void adamw_chunks(W* const* ws, const T* const* gs, W* const* ms,
                                        W* const* vs, T* const* lows, const W* rates,
                                        const int* skip, const W* factor, W b1, W one_minus_b1,
                                        W b2, W one_minus_b2, W eps, W shrink, W l2, W unscale,
                                        const long long* chunks, int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    W *w = ws[a], *m = ms[a], *v = vs[a];
    const T* g = gs[a];
    W step = rates[2 * a], inv_root = rates[2 * a + 1];
    if (factor) unscale *= *factor;
    SIMD for (long long i = begin; i < end; ++i)
      update(w[i], to_float(g[i]) * unscale, m[i], v[i], step, inv_root, b1, one_minus_b1, b2,
             one_minus_b2, eps, shrink, l2);
    if (lows) {
      T* low = lows[a];
      SIMD for (long long i = begin; i < end; ++i) low[i] = from_float<T>(w[i]);
    }
  }
}

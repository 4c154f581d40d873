// SGD on a CPU: many arrays in one launch. Each thread takes one chunk, and its loop uses vectors.
// Formula: ../sgd.cuh   Parameters: sgd_many of ../sgd.cu
// Wrapper: minidl/optim/sgd.py   Test: tests/optim/test_sgd_kernel.py
#include "loops.cuh"
#include "sgd.cuh"

extern "C" __global__ void sgd_chunks(W* const* ws, const T* const* gs, W* const* vs,
                                      T* const* lows, const W* rates, const int* skip,
                                      const W* factor, W lr, W momentum, W decay, W unscale,
                                      int nesterov, const long long* chunks, int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    W* w = ws[a];
    const T* g = gs[a];
    if (factor) unscale *= *factor;
    if (vs) {
      W *v = vs[a], keep = rates[2 * a], take = rates[2 * a + 1];
      SIMD for (long long i = begin; i < end; ++i)
        update(w[i], to_float(g[i]) * unscale, v[i], keep, take, lr, momentum, decay, nesterov);
    } else {
      SIMD for (long long i = begin; i < end; ++i)
        w[i] -= lr * (to_float(g[i]) * unscale + decay * w[i]);
    }
    if (lows) {
      T* low = lows[a];
      SIMD for (long long i = begin; i < end; ++i) low[i] = from_float<T>(w[i]);
    }
  }
}

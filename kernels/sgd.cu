// SGD with momentum, weight decay and Nesterov's form (Sutskever, Martens, Dahl, Hinton 2013), in
// one pass over memory.
//
//   g = unscale grad + decay w
//   v = keep v + take g
//   keep = momentum, take = 1 - dampening. At the first step: keep = 0, take = 1
//   w = w - lr (nesterov ? g + momentum v : v)     without momentum: w = w - lr g
//
//   w, v   type W: float (double if T is double)     g   type T
//   low    T: an fp16 copy of w for the model, or null
//   Bytes for each parameter, in float: reads w, g, v and writes w, v: 20. Without momentum it
//   reads w, g and writes w: 12
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// sgd_many reaches 90%: a thread reads 2 or 3 packs of 16 bytes (up to 5 packs in half) before it
// waits. So 1024 threads of an SM have 32 KB or more in flight. An array that does not begin at a
// multiple of 16 bytes is read element by element, which gives 60%.
//
// Rungs: a launch of sgd_naive updates one array, without momentum. A thread updates one weight. A
// launch of sgd_blocks updates many arrays, and a block updates one chunk. sgd_many does the same
// with 16 bytes in each access. cpu/sgd.cu runs on a CPU.
// Wrapper: minidl/optim/sgd.py   Test: tests/optim/test_sgd_kernel.py
#include "sgd.cuh"

extern "C" __global__ void sgd_naive(W* w, const T* g, int n, W lr, W decay) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    w[i] -= lr * (to_float(g[i]) + decay * w[i]);
}

// vs: null if there is no momentum. rates: (arrays, 2), the numbers `keep` and `take` of each
// array. They differ between arrays, because an array may get its first gradient later. skip: one
// int, or null. If *skip is not 0, the gradients overflowed, and the kernel does nothing. adamw.cu
// explains factor. Each block updates one chunk. Neighbouring threads take neighbouring weights.
extern "C" __global__ void sgd_blocks(W* const* ws, const T* const* gs, W* const* vs,
                                      T* const* lows, const W* rates, const int* skip,
                                      const W* factor, W lr, W momentum, W decay, W unscale,
                                      int nesterov, const long long* chunks, int n_chunks) {
  int c = blockIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    W* w = ws[a];
    const T* g = gs[a];
    if (factor) unscale *= *factor;
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
      W gradient = to_float(g[i]) * unscale;
      if (vs) update(w[i], gradient, vs[a][i], rates[2 * a], rates[2 * a + 1], lr, momentum, decay,
                     nesterov);
      else w[i] -= lr * (gradient + decay * w[i]);
      if (lows) lows[a][i] = from_float<T>(w[i]);
    }
  }
}

// As sgd_blocks, with 16 bytes in each access. A thread takes one pack of gradients at a time, and
// the weights that belong to it.
extern "C" __global__ void sgd_many(W* const* ws, const T* const* gs, W* const* vs, T* const* lows,
                                    const W* rates, const int* skip, const W* factor, W lr,
                                    W momentum, W decay, W unscale, int nesterov,
                                    const long long* chunks, int n_chunks) {
  int c = blockIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    const long long a = chunks[3 * c], begin = chunks[3 * c + 1];
    const int size = chunks[3 * c + 2] - begin;
    W *w = ws[a] + begin, *v = vs ? vs[a] + begin : 0;
    const T* g = gs[a] + begin;
    T* low = lows ? lows[a] + begin : 0;
    const bool whole = packs(w) && packs(v) && packs(g) && packs(low);
    const W keep = v ? rates[2 * a] : W(0), take_in = v ? rates[2 * a + 1] : W(0);
    if (factor) unscale *= *factor;
    const int N = PACK(T);
    for (int i = N * threadIdx.x; i < size; i += N * blockDim.x) {
      W wi[N], gi[N], vi[N];
      take<N>(wi, w, i, size, whole);
      take<N>(gi, g, i, size, whole);
      if (v) take<N>(vi, v, i, size, whole);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (v) update(wi[k], gi[k] * unscale, vi[k], keep, take_in, lr, momentum, decay, nesterov);
        else wi[k] -= lr * (gi[k] * unscale + decay * wi[k]);
      }
      put<N>(w, wi, i, size, whole);
      if (v) put<N>(v, vi, i, size, whole);
      if (low) put<N>(low, wi, i, size, whole);
    }
  }
}

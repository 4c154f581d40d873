// AdamW and Adam (Kingma & Ba 2014; Loshchilov & Hutter 2017): the whole update in one pass over
// memory.
//
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   w = shrink w - step m / (sqrt(v) / sqrt(1 - b2^t) + eps)         step = lr / (1 - b1^t)
//   AdamW: shrink = 1 - lr decay, l2 = 0        Adam: shrink = 1, l2 = decay, g += l2 w first
//   unscale: g is multiplied by it first (1 / loss scale)
//
//   w, m, v   W: float (double when T is)     g   T
//   low       T: an fp16 copy of w for the model, or null
//   float:    reads w g m v, writes w m v: 28 bytes a parameter; op by op it is about 130
//   half with master:  reads 14, writes 12 + 2:          28
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured; how: gelu.cu):
// a thread of _many reads 4 numbers, 14 to 16 bytes, before it waits: 2048 threads have 28 KB or
// more on the way in an SM, where 15 are wanted: 85 to 90%. A square root and a division are
// hidden.
//
// Rungs: adamw_naive, one array a launch, a thread per weight; adamw_chunks, many arrays in one
// launch, a thread per chunk (a CPU's vector loop); adamw_many, the same with a block per chunk (a
// GPU's).
// Wrapper: minidl/fused/adamw.py   Test: tests/fused/test_adamw.py
#include "common.cuh"

#ifndef W
#define W float
#endif

// One weight. `rates` are the two factors that depend on the step count: step, and 1 / sqrt(1 -
// b2^t).
__device__ __forceinline__ void update(W& w, W g, W& m, W& v, W step, W inv_root, W b1,
                                       W one_minus_b1, W b2, W one_minus_b2, W eps, W shrink,
                                       W l2) {
  // In registers until the end: the arrays might overlap for all a compiler knows, so it would load
  // w and m again.
  const W before = w;
  g += l2 * before;
  const W first = b1 * m + one_minus_b1 * g, second = b2 * v + one_minus_b2 * g * g;
  m = first;
  v = second;
  w = shrink * before - step * first / (sqrt(second) * inv_root + eps);
}

extern "C" __global__ void adamw_naive(W* w, const T* g, W* m, W* v, int n, W step, W inv_root,
                                       W b1, W one_minus_b1, W b2, W one_minus_b2, W eps, W shrink,
                                       W l2, W unscale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    update(w[i], to_float(g[i]) * unscale, m[i], v[i], step, inv_root, b1, one_minus_b1, b2,
           one_minus_b2, eps, shrink, l2);
}

// ---- many arrays: tables of addresses, and chunks (array, begin, end). Saves a launch per array.
//
// rates: (arrays, 2), step and inv_root of each, since arrays may have met different numbers of
// steps. skip: one int, not 0 if the gradients overflowed: then nothing happens, and nobody has to
// ask the GPU first. Or null. factor: one number that the gradients are multiplied by beside
// unscale, for one that the GPU has found itself (loss scale, clipping). Or null.

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

extern "C" __global__ void adamw_many(W* const* ws, const T* const* gs, W* const* ms, W* const* vs,
                                      T* const* lows, const W* rates, const int* skip,
                                      const W* factor, W b1, W one_minus_b1, W b2,
                                      W one_minus_b2, W eps, W shrink, W l2, W unscale,
                                      const long long* chunks, int n_chunks) {
  int c = blockIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    W *w = ws[a], *m = ms[a], *v = vs[a];
    const T* g = gs[a];
    W step = rates[2 * a], inv_root = rates[2 * a + 1];
    if (factor) unscale *= *factor;
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
      update(w[i], to_float(g[i]) * unscale, m[i], v[i], step, inv_root, b1, one_minus_b1, b2,
             one_minus_b2, eps, shrink, l2);
      if (lows) lows[a][i] = from_float<T>(w[i]);
    }
  }
}

// The rates of a step that a GPU may skip by itself. counts: how many updates each array has seen,
// which this step raises unless it is skipped; a graph that is replayed counts on.
extern "C" __global__ void adamw_rates(W* rates, int* counts, const int* skip, double lr, double b1,
                                       double b2, int n_arrays) {
  int a = blockIdx.x * blockDim.x + threadIdx.x;
  if (a < n_arrays) {  // guard
    int t = counts[a] + !(skip && *skip);
    counts[a] = t;
    rates[2 * a] = (W)(lr / (1 - pow(b1, (double)t)));
    rates[2 * a + 1] = (W)(1 / sqrt(1 - pow(b2, (double)t)));
  }
}

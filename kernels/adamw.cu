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
// a thread of _many reads 4 packs in float, in half 7, before it waits: 64 bytes or more, so that 256
// threads have an SM's 15 KB on the way, and its requests are of 512 bytes a warp: 90%. A square root
// and a division are hidden. Arrays much shorter than a chunk leave threads without work; one that
// begins at no multiple of 16 bytes is read element by element: 60%.
//
// Rungs: adamw_naive, one array a launch, a thread per weight; adamw_blocks, many arrays in one
// launch, a block per chunk; adamw_many, the same with 16 bytes an access. On a CPU: cpu/adamw.cu
// Wrapper: minidl/optim/adam.py   Test: tests/optim/test_adam_kernel.py
#include "adamw.cuh"

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
//
// A block per chunk, a weight a thread in turn: neighbouring threads take neighbouring weights.
extern "C" __global__ void adamw_blocks(W* const* ws, const T* const* gs, W* const* ms,
                                        W* const* vs, T* const* lows, const W* rates,
                                        const int* skip, const W* factor, W b1, W one_minus_b1,
                                        W b2, W one_minus_b2, W eps, W shrink, W l2, W unscale,
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

// The same with 16 bytes an access: a thread takes the weights of one pack of gradients, four in
// float; in half eight, whose w, m and v are two packs each.
extern "C" __global__ void adamw_many(W* const* ws, const T* const* gs, W* const* ms, W* const* vs,
                                      T* const* lows, const W* rates, const int* skip,
                                      const W* factor, W b1, W one_minus_b1, W b2,
                                      W one_minus_b2, W eps, W shrink, W l2, W unscale,
                                      const long long* chunks, int n_chunks) {
  int c = blockIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    const long long a = chunks[3 * c], begin = chunks[3 * c + 1];
    const int size = chunks[3 * c + 2] - begin;
    W *w = ws[a] + begin, *m = ms[a] + begin, *v = vs[a] + begin;
    const T* g = gs[a] + begin;
    T* low = lows ? lows[a] + begin : 0;
    const bool whole = packs(w) && packs(m) && packs(v) && packs(g) && packs(low);
    W step = rates[2 * a], inv_root = rates[2 * a + 1];
    if (factor) unscale *= *factor;
    const int N = PACK(T);
    for (int i = N * threadIdx.x; i < size; i += N * blockDim.x) {
      W wi[N], gi[N], mi[N], vi[N];
      take<N>(wi, w, i, size, whole);
      take<N>(gi, g, i, size, whole);
      take<N>(mi, m, i, size, whole);
      take<N>(vi, v, i, size, whole);
#pragma unroll
      for (int k = 0; k < N; ++k)
        update(wi[k], gi[k] * unscale, mi[k], vi[k], step, inv_root, b1, one_minus_b1, b2,
               one_minus_b2, eps, shrink, l2);
      put<N>(w, wi, i, size, whole);
      put<N>(m, mi, i, size, whole);
      put<N>(v, vi, i, size, whole);
      if (low) put<N>(low, wi, i, size, whole);
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

// AdamW and Adam (Kingma & Ba 2014; Loshchilov & Hutter 2017). The whole update is one pass over
// memory.
//
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   w = shrink w - step m / (sqrt(v) / sqrt(1 - b2^t) + eps)         step = lr / (1 - b1^t)
//   AdamW: shrink = 1 - lr decay, l2 = 0        Adam: shrink = 1, l2 = decay, g += l2 w first
//   g is first multiplied by unscale (1 / loss scale)
//
//   w, m, v   type W: float (double if T is double)     g   type T
//   low       T: an fp16 copy of w for the model, or null
//   Bytes for each parameter:
//   float     reads w, g, m, v and writes w, m, v, of 4 bytes each: 28. With one kernel for each
//             array operation, about 130 bytes are moved
//   half      only g and low are half, w, m, v stay float: reads 14, writes 14
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// adamw_many reaches 90%: a thread reads 4 packs of 16 bytes (7 packs in half) before it waits. So
// 256 threads of an SM have 16 KB or more in flight, and an H100 needs 15 KB. The square root and
// the division take no extra time, because the thread waits for memory anyway. In arrays much
// shorter than a chunk some threads have no work. An array that does not begin at a multiple of 16
// bytes is read element by element, which gives 60%.
//
// Rungs: a launch of adamw_naive updates one array, and a thread updates one weight. A launch of
// adamw_blocks updates many arrays, and a block updates one chunk. adamw_many does the same with 16
// bytes in each access. cpu/adamw.cu runs on a CPU.
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

// ---- many arrays in one launch: tables of addresses, and chunks (array, begin, end) ----
//
// rates: (arrays, 2), the numbers `step` and `inv_root` of each array. They differ between arrays,
// because the number of updates of the arrays can differ. skip: one int, or null. If *skip is not
// 0, the gradients overflowed, and the kernel does nothing. So the host does not have to wait for
// the GPU to learn about the overflow. factor: one number, or null. The gradients are multiplied by
// unscale and by *factor. A kernel on the GPU computes *factor, from the loss scale or to clip the
// gradients.
//
// Each block updates one chunk. Neighbouring threads take neighbouring weights.
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

// As adamw_blocks, with 16 bytes in each access. A thread takes one pack of gradients at a time:
// four gradients in float, eight in half. In half, w, m and v stay float. So eight numbers of w, of
// m or of v fill two packs.
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

// Computes `rates` on the GPU. counts: the number of updates of each array. If *skip is 0, the
// kernel adds 1 to each count. So the counts are right if a CUDA graph replays the step, and if the
// step is skipped.
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

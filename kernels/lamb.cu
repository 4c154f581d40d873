// LAMB (You et al. 2019): Adam's direction r, with a step length of its own for each tensor.
//
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   r = first m / (sqrt(root^2 v + inside) + outside) + decay w        first = 1 / (1 - b1^t)
//   w = w - step r                 step = lr |w| / |r|                  root = 1 / sqrt(1 - b2^t)
//
// `step` needs |r| of the whole tensor, so there are two passes. The second pass computes r again,
// from m, v and w. To store r in the first pass moves the same number of bytes, and needs 4 bytes
// of memory for each parameter.
//
//   lamb_moments   reads w, g, m, v, writes m, v: 24 bytes for each parameter. It also writes the
//                  sums of w^2 and r^2 of each chunk. chunk_sums (grad_norm.cu) adds these sums for
//                  each tensor
//   lamb_update    reads w, m, v, writes w: 16 bytes for each parameter
//   The two kernels move 40 bytes for each parameter. With one kernel for each array operation,
//   about 170 bytes are moved
//
// Expected share of a copy's bandwidth on a GPU: 85 to 90% in both passes, as in adamw.cu. It is
// computed, not measured.
//
// Each block takes one chunk. Neighbouring threads take neighbouring weights. cpu/lamb.cu runs on a
// CPU.
// Wrapper: minidl/optim/lamb.py   Test: tests/optim/test_lamb_kernel.py
#include "lamb.cuh"

// rates: (arrays, 2), the numbers `first` and `root` of each array. partial: (chunks, 2), the sums
// of w^2 and r^2 of each chunk. adamw.cu explains skip and factor.
extern "C" __global__ void lamb_moments_many(W* partial, const W* const* ws, const T* const* gs,
                                             W* const* ms, W* const* vs, const W* rates,
                                             const int* skip, const W* factor, W b1,
                                             W one_minus_b1, W b2, W one_minus_b2, W inside,
                                             W outside, W decay, W unscale,
                                             const long long* chunks, int n_chunks) {
  __shared__ W scratch[33];
  int c = blockIdx.x;
  long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
  const W first = rates[2 * a], root = rates[2 * a + 1];
  W w2 = 0, r2 = 0;
  if (factor) unscale *= *factor;
  if (skip && *skip) end = begin;
  for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const W x = ws[a][i], grad = to_float(gs[a][i]) * unscale;
    const W average = b1 * ms[a][i] + one_minus_b1 * grad;
    const W square = b2 * vs[a][i] + one_minus_b2 * grad * grad;
    ms[a][i] = average;
    vs[a][i] = square;
    const W r = direction(x, average, square, first, root, inside, outside, decay);
    w2 += x * x;
    r2 += r * r;
  }
  w2 = block_sum(w2, scratch);
  r2 = block_sum(r2, scratch);
  if (threadIdx.x == 0) {
    partial[2 * c] = w2;
    partial[2 * c + 1] = r2;
  }
}

// rates: (arrays, 3), the numbers `first`, `root` and `step` of each array. lows: fp16 copies of w,
// or null.
extern "C" __global__ void lamb_update_many(W* const* ws, const W* const* ms, const W* const* vs,
                                            T* const* lows, const W* rates, const int* skip,
                                            W inside, W outside, W decay,
                                            const long long* chunks, int n_chunks) {
  int c = blockIdx.x;
  if (c < n_chunks && !(skip && *skip)) {  // guard
    long long a = chunks[3 * c], begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    W* w = ws[a];
    const W first = rates[3 * a], root = rates[3 * a + 1], step = rates[3 * a + 2];
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
      w[i] -= step * direction(w[i], ms[a][i], vs[a][i], first, root, inside, outside, decay);
      if (lows) lows[a][i] = from_float<T>(w[i]);
    }
  }
}

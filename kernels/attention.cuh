// Shared by all attention kernels: their parameters, the mask and dropout.
//
//   B sequences in a batch, H heads, L queries, S keys, E numbers in a row of a head
//   q (B, H, L, E)   k, v (B, H, S, E)   The last stride is 1. The other three are parameters, in
//                                        elements
//   o, go, gq (B, L, H, E)   gk, gv (B, S, H, E)
//   lse (B, H, L) and dots (B, L, H) are float. dots is D of attention_backward.cu
//   grid (blocks of queries or keys, H, B)
//   The compiler's option -DE= sets E, so the compiler knows the length of loops over E
//
//   mask      (B, H, L, S), with any strides. A broadcast dimension has stride 0. So a mask that is
//             the same for all queries has only S elements for each sequence. With -DMASK=bool, a
//             query may use the keys whose mask is true. With -DMASK=float or -DMASK=__half, the
//             mask is added to the scores. If all keys of a query are masked, its lse and o are 0.
//   dropout   With -DDROPOUT=1, probability (b, h, i, j) is kept if a random number of 32 bits is
//             >= threshold = ceil(p 2^32). It is draw ((b H + h) L + i) S + j of the generator
//             (seed, stream) at `counter`. A probability that is kept is multiplied by
//             keep_scale = 1 / (1 - p). Backward draws the same numbers again. So no mask is
//             stored, which saves L S bytes for each head.
//
// Test: tests/ops/test_attention_kernel.py, test_attention_mask.py
#pragma once
#include "common.cuh"

#ifndef E
#define E 32
#endif
#ifdef MASK
#define MASKED 1
#else
#define MASKED 0
#define MASK float
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif

// The last parameters of every kernel.
#define SHAPE                                                      \
  int n_queries, int n_keys,                                       \
  long long q_batch, long long q_head, long long q_row,            \
  long long k_batch, long long k_head, long long k_row,            \
  long long v_batch, long long v_head, long long v_row,            \
  float scale, int causal,                                         \
  const MASK* mask, long long mask_batch, long long mask_head,     \
  long long mask_row, long long mask_key,                          \
  unsigned long long seed, unsigned long long stream,              \
  unsigned long long counter, unsigned int threshold, float keep_scale

__device__ __forceinline__ float dot(const T* a, const T* b) {
  float sum = 0;
  for (int e = 0; e < E; ++e) sum += to_float(a[e]) * to_float(b[e]);
  return sum;
}

// Returns what an element of the mask adds to a score.
__device__ __forceinline__ float added(bool may_look) { return may_look ? 0.0f : -INFINITY; }
__device__ __forceinline__ float added(float x) { return x; }
__device__ __forceinline__ float added(__half x) { return to_float(x); }

// Mask and dropout of the pairs (query i, key j) of one head.
struct Pairs {
  const MASK* mask;
  long long mask_row, mask_key;
  unsigned long long seed, stream, counter;
  long long first;  // the draw of query 0 and key 0
  int n_keys;
  unsigned int threshold;
  float keep_scale;

  __device__ __forceinline__ float score(float s, int i, int j) const {
    return MASKED ? s + added(mask[i * mask_row + j * mask_key]) : s;
  }
  __device__ __forceinline__ unsigned long long draw(int i, int j) const {
    return (unsigned long long)(first + (long long)i * n_keys + j);
  }
  // Returns the dropout factor of a probability: 0 or keep_scale. One run of the cipher makes eight
  // draws, and this function uses one of them.
  __device__ __forceinline__ float kept(int i, int j) const {
    if (!DROPOUT) return 1;
    return random_bits(seed, stream, counter, draw(i, j)) >= threshold ? keep_scale : 0.0f;
  }
  // Returns 8 bits, for the eight draws of run `block` of the cipher. A bit is 1 if its pair is
  // kept.
  __device__ __forceinline__ unsigned char eight(unsigned long long block) const {
    unsigned int draws[8], bits = 0;
    philox(counter + block, seed, stream, draws);
    for (int d = 0; d < 8; ++d) bits |= (unsigned int)(draws[d] >= threshold) << d;
    return bits;
  }
};

// Returns the Pairs of a head, made from the parameters in SHAPE.
#define PAIRS(batch, head)                                                                    \
  {MASKED ? mask + (batch) * mask_batch + (head) * mask_head : mask, mask_row, mask_key,      \
   seed, stream, counter, ((batch) * gridDim.y + (head)) * (long long)n_queries * n_keys,     \
   n_keys, threshold, keep_scale}

// The maximum of a row of scores starts at LOWEST, not at -infinity. If all keys of a row are
// masked, all its scores are -infinity. -infinity - (-infinity) is nan, but exp(-infinity - LOWEST)
// is 0.
#define LOWEST (-FLT_MAX)
__device__ __forceinline__ float log_sum(float top, float total) {
  return total == 0 ? 0.0f : top + logf(total);
}
// Returns 1 / total, by which the sum of p v of a row is multiplied. If all keys of the row are
// masked, total is 0, and the function returns 1. For NaN it returns NaN.
__device__ __forceinline__ float inverse(float total) { return 1 / (total == 0 ? 1.0f : total); }

// ---- dropout of a tile: one bit per pair, in shared memory ----

// The number of bytes for the dropout bits of n keys of one query. A byte has the eight draws of
// one run of the cipher. The + 1 is needed because the first run may begin before the tile.
#define DRAWN(n) ((n) / 8 + 1)

// The block's threads write the dropout bits of n_rows queries from i0 on, and N keys from j0 on.
// The caller must put a barrier after this call.
template <int N> __device__ __forceinline__ void draw_tile(unsigned char* bits, const Pairs& pair,
                                                           int i0, int n_rows, int j0) {
  for (int at = threadIdx.x; DROPOUT && at < n_rows * DRAWN(N); at += blockDim.x)
    bits[at] = pair.eight(pair.draw(i0 + at / DRAWN(N), j0) / 8 + at % DRAWN(N));
}

// Returns the same as pair.kept(i0 + i, j0 + j), but takes it from the bits that draw_tile wrote.
template <int N> __device__ __forceinline__ float kept_in(const unsigned char* bits,
                                                          const Pairs& pair, int i0, int i, int j0,
                                                          int j) {
  if (!DROPOUT) return 1;
  const unsigned int at = (unsigned int)pair.draw(i0 + i, j0) % 8 + j;
  return bits[i * DRAWN(N) + at / 8] >> at % 8 & 1 ? pair.keep_scale : 0.0f;
}

// What the rungs of attention.cu and attention_backward.cu share: rows of a head in shared memory,
// products of them, a tile's dropout.
//
// Test: tests/ops/test_attention_kernel.py
#pragma once
#include "attention.cuh"

// ---- v2: tiles in shared memory ----

// The block's threads copy N rows of x to shared memory, rows past n_rows as zeros. PITCH = E + 1:
// 32 threads that read 32 rows at the same column then meet 32 different banks.
#define PITCH (E + 1)
template <int N> __device__ __forceinline__ void load_rows(float* tile, const T* x, long long row,
                                                           int n_rows) {
  for (int at = threadIdx.x; at < N * E; at += blockDim.x) {
    const int i = at / E, e = at % E;
    tile[i * PITCH + e] = i < n_rows ? to_float(x[i * row + e]) : 0.0f;
  }
}

#define ROWS (E > 64 ? 32 : 64)       // rows and threads of a block of v2
#define TILE_KEYS (E > 64 ? 16 : 32)  // with them all tiles fit in 48 KiB up to E = 128

// ---- v3: a warp for a few rows ----

#define WARPS 4                  // of a block in the warp rungs
#define EACH 4                   // rows of a warp: a number read from a shared tile serves all
#define OWN (WARPS * EACH)       // rows of a block
#define COLUMNS ((E + 31) / 32)  // of a row's E, those that one lane sums

// sum[r][c] += sum_j p[r] of lane j * tile[j][lane + 32 c]: a product whose left side lies across
// the lanes.
__device__ __forceinline__ void add_product(float (*sum)[COLUMNS], const float* p,
                                            const float* tile, int lane) {
  for (int j = 0; j < 32; ++j)
    for (int r = 0; r < EACH; ++r) {
      const float pj = __shfl_sync(0xffffffffu, p[r], j);
      for (int c = 0; c < COLUMNS; ++c)
        if (lane + 32 * c < E) sum[r][c] += pj * tile[j * PITCH + lane + 32 * c];
    }
}

// out[r] = sum_e rows[r][e] tile[lane][e]: each lane one column of the product.
__device__ __forceinline__ void lane_products(float* out, const float* rows, const float* tile,
                                              int lane) {
  for (int r = 0; r < EACH; ++r) out[r] = 0;
  for (int e = 0; e < E; ++e)
    for (int r = 0; r < EACH; ++r) out[r] += rows[r * PITCH + e] * tile[lane * PITCH + e];
}

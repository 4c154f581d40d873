// Shared by the rungs of attention.cu and attention_backward.cu: rows of a head in shared memory,
// their products, and dropout of a tile.
//
// Test: tests/ops/test_attention_kernel.py
#pragma once
#include "attention.cuh"

// ---- v2: tiles in shared memory ----

// The block's threads copy N rows of x to shared memory. Rows after n_rows become zeros. In shared
// memory a row has PITCH = E + 1 elements. So 32 threads that read one column of 32 rows use 32
// different banks.
#define PITCH (E + 1)
template <int N> __device__ __forceinline__ void load_rows(float* tile, const T* x, long long row,
                                                           int n_rows) {
  for (int at = threadIdx.x; at < N * E; at += blockDim.x) {
    const int i = at / E, e = at % E;
    tile[i * PITCH + e] = i < n_rows ? to_float(x[i * row + e]) : 0.0f;
  }
}

#define ROWS (E > 64 ? 32 : 64)       // rows of a block of v2, and threads of a block
#define TILE_KEYS (E > 64 ? 16 : 32)  // up to E = 128 all tiles fit in 48 KiB

// ---- v3: a warp takes a few rows ----

#define WARPS 4                  // warps of a block in the warp rungs
#define EACH 4                   // rows of a warp: each number read from a tile serves all of them
#define OWN (WARPS * EACH)       // rows of a block
#define COLUMNS ((E + 31) / 32)  // how many of a row's E columns one lane sums

// sum[r][c] += sum over lanes j of (p[r] of lane j) * tile[j][lane + 32 c]. Lane j has column j of
// the left matrix p.
__device__ __forceinline__ void add_product(float (*sum)[COLUMNS], const float* p,
                                            const float* tile, int lane) {
  for (int j = 0; j < 32; ++j)
    for (int r = 0; r < EACH; ++r) {
      const float pj = __shfl_sync(0xffffffffu, p[r], j);
      for (int c = 0; c < COLUMNS; ++c)
        if (lane + 32 * c < E) sum[r][c] += pj * tile[j * PITCH + lane + 32 * c];
    }
}

// out[r] = sum_e rows[r][e] tile[lane][e]. Each lane computes one column of the product.
__device__ __forceinline__ void lane_products(float* out, const float* rows, const float* tile,
                                              int lane) {
  for (int r = 0; r < EACH; ++r) out[r] = 0;
  for (int e = 0; e < E; ++e)
    for (int r = 0; r < EACH; ++r) out[r] += rows[r * PITCH + e] * tile[lane * PITCH + e];
}

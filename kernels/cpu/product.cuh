// Products of small matrices on one CPU core, for conv.cu and conv_winograd.cu. linear.cu explains
// why a tile of the result stays in registers.
//
//   C = A B, or C += A B      A (n_rows x n_k), B (n_k x n_cols), C (n_rows x n_cols). The numbers
//                             of a row are neighbours. The next row begins a_row, b_row or c_row
//                             numbers later. n_cols must be a multiple of LANES
//
// A tile has 6 rows, and the last tile has the remaining rows. A tile is 4 vectors wide, so 24 of
// 32 registers hold sums. On processors with 16 registers it is 2 vectors wide. At the last columns
// a tile may be narrower.
// Test: tests/ops/test_conv_cpu.py
#pragma once
#include "vector.cuh"

template <int N> struct Int {
  static constexpr int VALUE = N;
};

constexpr int TILE_ROWS = 6;
constexpr int TILE_VECS = REGISTERS == 32 ? 4 : 2;
constexpr int K_AHEAD = 8;  // rows of B between a request to the cache and the use

template <int ROWS, int VECS>
__noinline__ void tile_of(float* c, long long c_row, const float* a, long long a_row, const float* b,
                          long long b_row, int n_k, bool add) {
  Vec sum[ROWS][VECS];
  const float* row[ROWS];
  UNROLL for (int m = 0; m < ROWS; ++m) {
    row[m] = a + m * a_row;
    UNROLL for (int n = 0; n < VECS; ++n) sum[m][n] = Vec{};
  }
  for (int k = 0; k < n_k; ++k, b += b_row) {
    if (k % 16 == 0)
      UNROLL for (int m = 0; m < ROWS; ++m) __builtin_prefetch(row[m] + TILE_ROWS * a_row + k);
    Vec bk[VECS];
    UNROLL for (int n = 0; n < VECS; ++n) {
      bk[n] = load(b + n * LANES);
      IN_REGISTER(bk[n]);
      __builtin_prefetch(b + K_AHEAD * b_row + n * LANES);
    }
    UNROLL for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) sum[m][n] += row[m][k] * bk[n];
  }
  UNROLL for (int m = 0; m < ROWS; ++m)
    UNROLL for (int n = 0; n < VECS; ++n) {
      float* at = c + m * c_row + n * LANES;
      store(at, add ? sum[m][n] + load(at) : sum[m][n]);
    }
}

// Computes up to TILE_ROWS rows of C, with all columns.
__forceinline__ void rows_product(float* c, long long c_row, const float* a, long long a_row,
                                  const float* b, long long b_row, int n_k, int n_rows, int n_cols,
                                  bool add) {
  auto tile = [&](auto vecs, int col) {
    constexpr int V = decltype(vecs)::VALUE;
    float* to = c + col;
    const float* from = b + col;
    switch (n_rows) {
      case 1: return tile_of<1, V>(to, c_row, a, a_row, from, b_row, n_k, add);
      case 2: return tile_of<2, V>(to, c_row, a, a_row, from, b_row, n_k, add);
      case 3: return tile_of<3, V>(to, c_row, a, a_row, from, b_row, n_k, add);
      case 4: return tile_of<4, V>(to, c_row, a, a_row, from, b_row, n_k, add);
      case 5: return tile_of<5, V>(to, c_row, a, a_row, from, b_row, n_k, add);
      default: return tile_of<6, V>(to, c_row, a, a_row, from, b_row, n_k, add);
    }
  };
  int col = 0;
  for (; col + TILE_VECS * LANES <= n_cols; col += TILE_VECS * LANES) tile(Int<TILE_VECS>{}, col);
  if (TILE_VECS == 4 && col + 2 * LANES <= n_cols) tile(Int<2>{}, col), col += 2 * LANES;
  if (col < n_cols) tile(Int<1>{}, col);
}

// Building blocks for the kernels that minidl/infer/lower.py generates for a plan. In such a kernel
// the compiler knows all sizes. Each product passes its results to a function `then`, while they
// are in the L1 cache.
//
//   linear    out (M, N) = then(a (M, K) w^T)               w packed in panels of 32 columns
//   conv      out (N, OH, OW, O) = then(sum over the filter's rows of products of KW C numbers)
//
//      image row h + 0   [c c c][c c c][c c c] ...   The channels are last. So under a row of the
//                         ------------------         filter lie KW pixels, KW C neighbouring
//      image row h + 1   [c c c][c c c][c c c] ...   numbers. For the next result they begin C
//                         ------------------         numbers later. So a convolution is a sum of KH
//                                                    matrix products with parts of the image.
//   conv does not copy patches (im2col). It needs a border of zeros around each image. The layer
//   before it has written this border.
//
// A tile of ROWS x VECS registers holds sums over all k. The functions vecs_of and rows_of choose
// ROWS and VECS at compile time, so that all M rows take the fewest cycles. Among equal choices
// they take the one with the fewest tiles, because each tile reads the weights from L2. For
// example, 64 rows become 4 tiles of 13 rows and one of 12 rows, all two registers wide. With 11
// tiles of 6 rows, four registers wide, the product took 9 % longer. While one panel is used, the
// next panel is copied from L3 to L2 (`later`). This saves 7 % of the time if all weights together
// are larger than L2.
//
// A core begins one or two multiply-adds in a cycle, and each takes four cycles. To keep the core
// busy, a tile of fewer than eight registers has several partial sums (WAYS). Each partial sum has
// its own part of k. A product with one row takes as long as reading w. It reads w in WAYS streams
// of addresses, one for each part of k, and the processor prefetches each stream. With 12 MB of
// weights, partly in the caches, two streams took 0.7 of the time of one stream (Zen 3). Prefetch
// instructions in the code made it slower (Zen 3, Zen 4).
//
// Source: Goto & van de Geijn 2008; Georganas et al. 2018 (arXiv 1808.05567), convolution in place.
// Runs only on CPUs.   Test: tests/infer/test_lower.py
#pragma once
#include "gelu.cuh"
#include "vector.cuh"

#define UNROLL_ROWS PRAGMA(GCC unroll 32)

constexpr int PANEL = 32;  // columns of a panel of packed weights. The last panel: a multiple of 16
constexpr int ROWS_AHEAD = 8;  // rows of a panel between a request to the cache and the use

// vecs_of chooses how many registers a row of a tile has. `width` columns are then a whole number
// of tiles. rows_of chooses how many of the m rows a tile has. cost_of returns how many half cycles
// a tile takes for each k. The processor does two multiply-adds and two loads in a cycle. So the
// cost is the number of the tile's multiply-adds or of its loads, whichever is larger. One register
// is reserved for a number of the left matrix `a`.
constexpr int most_rows(int vecs) { return (REGISTERS - 1 - vecs) / vecs; }
constexpr int rows_of(int m, int vecs) {
  const int tiles = (m + most_rows(vecs) - 1) / most_rows(vecs);
  return (m + tiles - 1) / tiles;
}
constexpr int cost_of(int rows, int vecs) {
  return rows == 0 ? 0 : rows * vecs > rows + vecs ? rows * vecs : rows + vecs;
}
constexpr int vecs_of(int m, int width) {
  int best = 1, least = 1 << 30, least_tiles = 0;
  // In a product with one row, 4 registers hold the results, so that it reads whole rows of a
  // panel.
  for (int v = REGISTERS == 32 || m == 1 ? 4 : 2; v > 0; --v) {
    const int n = width / LANES, rows = rows_of(m, v), tiles = (m + rows - 1) / rows;
    const int cost = n / v * (m / rows * cost_of(rows, v) + cost_of(m % rows, v));
    // among equal costs, take the tile with the most rows: each tile reads all of w, so fewer tiles
    // are better
    if (n % v == 0 && (cost < least || (cost == least && tiles < least_tiles)))
      best = v, least = cost, least_tiles = tiles;
  }
  return best;
}

// `tile` = the sum of SEGMENTS matrix products `a` @ `b`. `tile` has ROWS rows of VECS LANES
// numbers, `a` has ROWS rows of N_K numbers, and `b` has N_K rows. From one row to the next there
// are OUT_ROW numbers in `tile`, A_ROW in `a`, and B_ROW in `b`. The next `a` begins A_SEGMENT
// numbers later. The next `b` follows without a gap. For each k the function also requests the
// cache line at later + k B_ROW. So this line is in L2 when it is needed.
template <int ROWS, int VECS, long long A_ROW, int B_ROW, int N_K, int SEGMENTS,
          long long A_SEGMENT, int OUT_ROW = VECS * LANES>
__noinline__ void tile_product(float* tile, const float* a, const float* b,
                               const float* later = nullptr) {
  constexpr int WAYS = ROWS * VECS >= 8 || N_K < 16 ? 1 : ROWS * VECS >= 4 ? 2 : 4;
  Vec sum[WAYS][ROWS][VECS];
  UNROLL for (int w = 0; w < WAYS; ++w)
    UNROLL_ROWS for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) sum[w][m][n] = Vec{};
  auto add = [&](Vec (*to)[VECS], int k) {
    const float* row = b + (long long)k * B_ROW;
    Vec bk[VECS];
    UNROLL for (int n = 0; n < VECS; ++n) {
      bk[n] = load(row + n * LANES);
      if (ROWS > 1) IN_REGISTER(bk[n]);
      if (ROWS > 1 && N_K >= 16) __builtin_prefetch(row + ROWS_AHEAD * B_ROW + n * LANES);
    }
    if (ROWS > 1 && N_K >= 16) __builtin_prefetch(later + (long long)k * B_ROW, 0, 2);
    UNROLL_ROWS for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) to[m][n] += a[m * A_ROW + k] * bk[n];
  };
  for (int s = 0; s < SEGMENTS; ++s, a += A_SEGMENT, b += (long long)N_K * B_ROW)
    if (N_K < 16) {
      UNROLL for (int k = 0; k < N_K; ++k) {
        add(sum[0], k);
        READ_AGAIN();  // without it, old numbers of `a` fill the registers
      }
    } else {
      constexpr int PART = N_K / WAYS;
      for (int k = 0; k < PART; ++k)
        UNROLL for (int w = 0; w < WAYS; ++w) add(sum[w], w * PART + k);
      for (int k = WAYS * PART; k < N_K; ++k) add(sum[0], k);
    }
  UNROLL_ROWS for (int m = 0; m < ROWS; ++m)
    UNROLL for (int n = 0; n < VECS; ++n) {
      Vec total = sum[0][m][n];
      UNROLL for (int w = 1; w < WAYS; ++w) total += sum[w][m][n];
      store(tile + m * OUT_ROW + n * LANES, total);
    }
}

// Multiplies rows [first, last) of `a` by a panel of WIDTH columns. `a` has M rows. A row begins
// A_ROW elements after the row before. Calls then(x, row, column of the panel) for each result x.
// first is a multiple of ROWS. last is a multiple of ROWS, or M.
template <int M, int WIDTH, long long A_ROW, int N_K, int SEGMENTS, long long A_SEGMENT,
          class Then>
__forceinline__ void rows_times_panel(const float* a, const float* b, int first, int last,
                                      Then then) {
  constexpr int B_ROW = (WIDTH + 15) / 16 * 16, VECS = vecs_of(M, B_ROW), N = VECS * LANES;
  constexpr int ROWS = rows_of(M, VECS), REST = M % ROWS ? M % ROWS : ROWS;
  alignas(64) float tile[ROWS * N];
  for (int col = 0; col < WIDTH; col += N)
    for (int row = first; row < last; row += ROWS) {
      const int n_rows = min(ROWS, last - row);
      const float* later = b + (long long)N_K * B_ROW + row / ROWS % (B_ROW / LANES) * LANES;
      if (n_rows == ROWS)
        tile_product<ROWS, VECS, A_ROW, B_ROW, N_K, SEGMENTS, A_SEGMENT>(tile, a + row * A_ROW,
                                                                         b + col, later);
      else
        tile_product<REST, VECS, A_ROW, B_ROW, N_K, SEGMENTS, A_SEGMENT>(tile, a + row * A_ROW,
                                                                         b + col, later);
      if (WIDTH % N == 0)
        for (int m = 0; m < n_rows; ++m)
          SIMD for (int n = 0; n < N; ++n) then(tile[m * N + n], row + m, col + n);
      else
        for (int m = 0; m < n_rows; ++m)
          SIMD for (int n = 0; n < min(N, WIDTH - col); ++n)
            then(tile[m * N + n], row + m, col + n);
    }
}

// Computes a part of out (M, N) = then(a (M, K) w^T). The rows of out are divided into n_blocks
// blocks. The part has the rows of block x and the columns of panel y.
template <int M, int N, int K, class Then>
__forceinline__ void linear(const float* a, const float* w, int x, int y, int n_blocks, Then then) {
  constexpr int FULL = N / PANEL, TAIL = N % PANEL;
  const float* b = w + (long long)y * PANEL * K;
  auto at = [&](float sum, int row, int col) { then(sum, row, y * PANEL + col); };
  constexpr int ROWS = rows_of(M, vecs_of(M, FULL ? PANEL : (TAIL + 15) / 16 * 16));
  constexpr int TAIL_ROWS = TAIL ? rows_of(M, vecs_of(M, (TAIL + 15) / 16 * 16)) : ROWS;
  const int step = (y < FULL ? ROWS : TAIL_ROWS);
  const int size = (M + n_blocks * step - 1) / (n_blocks * step) * step;
  const int first = x * size, last = min(first + size, M);
  if (FULL && y < FULL) rows_times_panel<M, FULL ? PANEL : 16, K, K, 1, 0>(a, b, first, last, at);
  else rows_times_panel<M, TAIL ? TAIL : 16, K, K, 1, 0>(a, b, first, last, at);
}

// The layout of images (N, H, W, C) with borders of zeros. at() returns the offset of a pixel.
template <int H, int W, int C, int TOP, int BOTTOM, int LEFT, int RIGHT> struct Image {
  static constexpr long long ROW = (long long)(LEFT + W + RIGHT) * C;
  static constexpr long long SIZE = (TOP + H + BOTTOM) * ROW;
  static __forceinline__ long long at(int n, int h, int w) {
    return n * SIZE + (TOP + h) * ROW + (LEFT + w) * C;
  }
  // Writes the zeros of the border next to row h of image n, in channels [first, last).
  static __forceinline__ void border(float* out, int n, int h, int first, int last) {
    float* row = out + n * SIZE + (TOP + h) * ROW;
    auto zeros = [&](float* row, int pixels) {
      for (int w = 0; w < pixels; ++w)
        for (int c = first; c < last; ++c) row[w * C + c] = 0;
    };
    zeros(row, LEFT);
    zeros(row + (LEFT + W) * C, RIGHT);
    if (h == 0)
      for (int i = 1; i <= TOP; ++i) zeros(row - i * ROW, LEFT + W + RIGHT);
    if (h == H - 1)
      for (int i = 1; i <= BOTTOM; ++i) zeros(row + i * ROW, LEFT + W + RIGHT);
  }
};

// Computes a part of a convolution: row h of image n, in the columns of panel y. The images are (N,
// H, W, C) with their borders. The filters (KH, KW, C) are packed as (KH KW C, O).
template <int OH, int OW, int O, int H, int W, int C, int KH, int KW, int DOWN, int RIGHT,
          class Then>
__forceinline__ void conv_row(const float* x, const float* w, int h, int y, int n, Then then) {
  constexpr int FULL = O / PANEL, TAIL = O % PANEL, K = KH * KW * C;
  const float* b = w + (long long)y * PANEL * K;
  x += ((long long)n * H + h * DOWN) * W * C;
  auto at = [&](float sum, int pixel, int col) { then(sum, pixel, y * PANEL + col); };
  if (FULL && y < FULL)
    rows_times_panel<OW, FULL ? PANEL : 16, RIGHT * C, KW * C, KH, W * C>(x, b, 0, OW, at);
  else
    rows_times_panel<OW, TAIL ? TAIL : 16, RIGHT * C, KW * C, KH, W * C>(x, b, 0, OW, at);
}

// Returns the larger of two numbers. NaN counts as the largest, as in PyTorch.
__forceinline__ float larger(float kept, float a) { return a > kept || a != a ? a : kept; }

// Pools an image: computes row h of image n of the result. A result is the largest number or the
// mean of a window. The images are (N, H, W, C). A window begins TOP rows above its pixel and LEFT
// columns to the left. CUT: true if a window may reach beyond the image.
template <int OW, int H, int W, int C, int KH, int KW, int DOWN, int RIGHT, int TOP, int LEFT,
          bool CUT, bool MAX, class Then>
__forceinline__ void pool_row(const float* x, int h, int n, Then then) {
  auto joined = [](float kept, float a) { return MAX ? larger(kept, a) : kept + a; };
  x += (long long)n * H * W * C;
  const int top = CUT ? max(h * DOWN - TOP, 0) : h * DOWN;
  const int rows = CUT ? min(h * DOWN - TOP + KH, H) - top : KH;
  for (int w = 0; w < OW; ++w) {
    const int left = CUT ? max(w * RIGHT - LEFT, 0) : w * RIGHT;
    const int columns = CUT ? min(w * RIGHT - LEFT + KW, W) - left : KW;
    const float* from = x + ((long long)top * W + left) * C;
    SIMD for (int c = 0; c < C; ++c) {
      float kept = MAX ? -INFINITY : 0.0f;
      for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) kept = joined(kept, from[(i * W + j) * C + c]);
      then(MAX ? kept : kept * (1.0f / (KH * KW)), w, c);
    }
  }
}

// A 3 x 3 convolution of a plan, on a CPU, with Winograd's F(2 x 2, 3 x 3). It needs 16 products
// for 2 x 2 pixels of the result, and the plain formula needs 36. minidl/infer/images.py generates
// the kernel that calls these functions.
//
//   one dimension     image d0 d1 d2 d3, filter g0 g1 g2, two results: 4 products instead of 6
//                       y0 = d0 g0 + d1 g1 + d2 g2 = m0 + m1 + m2     m0 = (d0 - d2) g0
//                       y1 = d1 g0 + d2 g1 + d3 g2 = m1 - m2 - m3     m3 = (d1 - d3) g2
//                       m1 = (d1 + d2) (g0 + g1 + g2) / 2
//                       m2 = (d2 - d1) (g0 - g1 + g2) / 2
//   two dimensions    the same along the columns, then along the rows. A tile of 4 x 4 pixels
//                     becomes 16 numbers. In every channel, number i is multiplied by number i of
//                     the filter. The products are summed over the channels. So for each i there is
//                     a product of matrices, (tiles, C) @ (C, O). Then the 16 sums become 2 x 2
//                     pixels.
//
// The filters are transformed when the plan is made, in float64. The additional sums and
// differences lose about one of float32's 24 bits. The numbers of a group of tiles stay in the
// caches, from the pixels to the results.
//
// Source: Lavin & Gray 2016 (arXiv 1509.09308).   Test: tests/infer/test_lower.py
#pragma once
#include "infer.cuh"

// spread() and gather() work on four vectors of an array, at the indices 0, `apart`, 2 * `apart`
// and 3 * `apart`. spread() transforms four pixels d into four factors. gather() transforms four
// sums into two results.
__forceinline__ void spread(Vec* d, int apart) {
  const Vec a = d[0] - d[2 * apart], b = d[apart] + d[2 * apart];
  const Vec c = d[2 * apart] - d[apart], e = d[apart] - d[3 * apart];
  d[0] = a, d[apart] = b, d[2 * apart] = c, d[3 * apart] = e;
}
__forceinline__ void gather(Vec* m, int apart) {
  const Vec a = m[0] + m[apart] + m[2 * apart], b = m[apart] - m[2 * apart] - m[3 * apart];
  m[0] = a, m[apart] = b;
}

// Computes d (16, M, C): the transformed pixels for group `group` of M tiles of the image x (H, W,
// C).
template <int M, int OH, int OW, int H, int W, int C>
__forceinline__ void winograd_tiles(float* d, const float* x, int group) {
  constexpr int ACROSS = (OW + 1) / 2, TILES = (OH + 1) / 2 * ACROSS;
  for (int t = 0; t < M; ++t) {  // after the last tile, repeat it. After the image, repeat its edge
    const int tile = min(group * M + t, TILES - 1), h = tile / ACROSS * 2,
              across = tile % ACROSS * 2;
    for (int c = 0; c < C; c += LANES) {
      Vec v[16];
      UNROLL for (int i = 0; i < 4; ++i)
        UNROLL for (int j = 0; j < 4; ++j)
          v[4 * i + j] = load(x + (min(h + i, H - 1) * W + min(across + j, W - 1)) * C + c);
      UNROLL for (int j = 0; j < 4; ++j) spread(v + j, 4);
      UNROLL for (int i = 0; i < 4; ++i) spread(v + 4 * i, 1);
      UNROLL for (int p = 0; p < 16; ++p) store(d + (p * M + t) * C + c, v[p]);
    }
  }
}

// Computes WIDTH columns of the group's results. w: (16, C, WIDTH rounded up to a multiple of 16).
// Calls then(x, row of the pixel, column of the pixel, column of the panel) for each result x.
template <int M, int WIDTH, int OH, int OW, int C, class Then>
__forceinline__ void winograd_panel(const float* d, const float* w, int group, Then then) {
  constexpr int ACROSS = (OW + 1) / 2, TILES = (OH + 1) / 2 * ACROSS;
  constexpr int B_ROW = (WIDTH + 15) / 16 * 16, VECS = vecs_of(M, B_ROW), N = VECS * LANES;
  constexpr int ROWS = rows_of(M, VECS), REST = M % ROWS ? M % ROWS : ROWS;
  alignas(64) float sums[16 * M * B_ROW];
  const int first = group * M;
  for (int p = 0; p < 16; ++p)
    for (int col = 0; col < B_ROW; col += N)
      for (int row = 0; row < M; row += ROWS) {
        float* to = sums + (p * M + row) * B_ROW + col;
        const float *a = d + (p * M + row) * C, *b = w + p * C * B_ROW + col;
        if (row + ROWS <= M) tile_product<ROWS, VECS, C, B_ROW, C, 1, 0, B_ROW>(to, a, b);
        else tile_product<REST, VECS, C, B_ROW, C, 1, 0, B_ROW>(to, a, b);
      }
  for (int t = 0; t < min(M, TILES - first); ++t) {
    const int h = (first + t) / ACROSS * 2, across = (first + t) % ACROSS * 2;
    for (int col = 0; col < WIDTH; col += LANES) {
      Vec v[16];
      UNROLL for (int p = 0; p < 16; ++p) v[p] = load(sums + (p * M + t) * B_ROW + col);
      UNROLL for (int j = 0; j < 4; ++j) gather(v + j, 4);
      UNROLL for (int i = 0; i < 2; ++i) gather(v + 4 * i, 1);
      for (int i = 0; i < min(2, OH - h); ++i)
        for (int j = 0; j < min(2, OW - across); ++j) {
          alignas(64) float y[LANES];
          store(y, v[4 * i + j]);
          const int columns = WIDTH % LANES ? min(LANES, WIDTH - col) : LANES;
          SIMD for (int n = 0; n < columns; ++n) then(y[n], h + i, across + j, col + n);
        }
    }
  }
}

// Computes group `group` of M tiles of image n, in the panels [first, last) of columns. The images
// are (N, H, W, C) with their borders. C is a multiple of 16. The filters are packed as (16 C, O).
template <int M, int OH, int OW, int O, int H, int W, int C, class Then>
__forceinline__ void winograd(const float* x, const float* w, int group, int first, int last, int n,
                              Then then) {
  constexpr int FULL = O / PANEL, TAIL = O % PANEL;
  alignas(64) float d[16 * M * C];
  winograd_tiles<M, OH, OW, H, W, C>(d, x + (long long)n * H * W * C, group);
  for (int y = first; y < last; ++y) {
    const float* b = w + (long long)y * PANEL * 16 * C;
    auto at = [&](float sum, int h, int pixel, int col) { then(sum, h, pixel, y * PANEL + col); };
    if (FULL && y < FULL) winograd_panel<M, FULL ? PANEL : 16, OH, OW, C>(d, b, group, at);
    else winograd_panel<M, TAIL ? TAIL : 16, OH, OW, C>(d, b, group, at);
  }
}

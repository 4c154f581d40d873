#include "pixels.cuh"

constexpr int TOGETHER = 16;  // rows, and numbers of a row, whose weights lie in L1 at a time

// Weights w of 3 x 3 as U (chunks, 16, n_rows, chunk), p = 4 i + j: U = G g G^T, the depth in chunks
// of `chunk`, a multiple of TOGETHER. turned: each g is turned around. grid ceil(n_rows / TOGETHER), block 1.
extern "C" __global__ void winograd_weights(float* u, const float* w, int n_rows, int depth,
                                            int chunk, long long row_stride,
                                            long long depth_stride, int turned) {
  const int first = blockIdx.x * TOGETHER, last = min(first + TOGETHER, n_rows);
  for (int d0 = 0; d0 < depth; d0 += TOGETHER)
    for (int row = first; row < last; ++row) {
      const float* from = w + row * row_stride + d0 * depth_stride;
      float* to = u + (d0 / chunk * 16LL * n_rows + row) * chunk + d0 % chunk;
      const int n = min(TOGETHER, depth - d0);
      float g[9][TOGETHER] = {}, t[12][TOGETHER], r[16][TOGETHER];
      for (int d = 0; d < n; ++d)
        for (int i = 0; i < 9; ++i) g[turned ? 8 - i : i][d] = from[d * depth_stride + i];
      for (int j = 0; j < 3; ++j)
        SIMD for (int d = 0; d < TOGETHER; ++d) {
          const float a = g[j][d], b = g[3 + j][d], c = g[6 + j][d];
          t[j][d] = a, t[3 + j][d] = 0.5f * (a + b + c), t[6 + j][d] = 0.5f * (a - b + c);
          t[9 + j][d] = c;
        }
      for (int i = 0; i < 4; ++i)
        SIMD for (int d = 0; d < TOGETHER; ++d) {
          const float a = t[3 * i][d], b = t[3 * i + 1][d], c = t[3 * i + 2][d];
          r[4 * i][d] = a, r[4 * i + 1][d] = 0.5f * (a + b + c);
          r[4 * i + 2][d] = 0.5f * (a - b + c), r[4 * i + 3][d] = c;
        }
      for (int p = 0; p < 16; ++p) copy(to + (long long)p * n_rows * chunk, r[p], n);
    }
}

constexpr int PAST = 2 * 16;  // floats behind a row that a vector may touch

// V (16, n_channels, n_tiles) of tiles [begin, begin + n_tiles) of images x (N, channels, h, w),
// the top left pixel of whose first tile is at (-top, -left).
__forceinline__ void winograd_inputs(float* v, long long v_plane, int v_row, const float* x,
                                     int first_channel, int n_channels, int channels, int h, int w,
                                     int top, int left, int begin, int end, int in_image,
                                     int across) {
  const int pitch = 2 * across + 2 + PAST, n_rows_most = 2 * ((end - begin) / across + 2) + 2;
  const int wide = (across + 15) / 16 * 16;
  alignas(64) float image[n_rows_most * pitch];
  const int plane = (n_rows_most / 2 + 1) * across + 2 * PAST;  // of one parity of rows
  alignas(64) float q[8 * plane];
  for (int i = 0; i < n_rows_most * pitch; ++i) image[i] = 0;
  for (int c = 0; c < n_channels; ++c) {
    for (int tile = begin; tile < end;) {
      const Piece p = piece_of(tile, end, in_image, across);
      const float* from = x + ((long long)p.image * channels + first_channel + c) * h * w;
      const int rows = 2 * (p.bottom_row - p.top_row) + 4, first_row = 2 * p.top_row - top;
      const int skip = max(left, 0), cut = max(-left, 0);
      const int n = min(w - cut, 2 * across + 2 - skip);
      for (int r = 0; r < rows; ++r) {
        float* to = image + r * pitch + skip;
        if (first_row + r < 0 || first_row + r >= h)
          for (int i = 0; i < n; i += LANES) store(to + i, Vec{});
        else
          copy(to, from + (first_row + r) * w + cut, n);
      }
      for (int r = 0; r < rows; ++r) {
        const float* d = image + r * pitch;
        float* to = q + (r & 1) * 4 * plane + (r >> 1) * across;
        for (int j0 = 0; j0 < wide; j0 += 16) {
          float a[4][16];
          SIMD for (int j = 0; j < 16; ++j) {
            a[0][j] = d[2 * (j0 + j)], a[1][j] = d[2 * (j0 + j) + 1];
            a[2][j] = d[2 * (j0 + j) + 2], a[3][j] = d[2 * (j0 + j) + 3];
          }
          SIMD for (int j = 0; j < 16; ++j) {
            to[j0 + j] = a[0][j] - a[2][j];
            to[plane + j0 + j] = a[1][j] + a[2][j];
            to[2 * plane + j0 + j] = a[2][j] - a[1][j];
            to[3 * plane + j0 + j] = a[1][j] - a[3][j];
          }
        }
      }
      const int at = p.first - p.top_row * across;
      float* out = v + (long long)c * v_row + tile - begin;
      for (int t = 0; t < p.last - p.first; t += LANES)
        for (int j = 0; j < 4; ++j) {
          const float *even = q + j * plane + at + t, *odd = even + 4 * plane;
          const Vec a = load(even), b = load(odd), e = load(even + across), f = load(odd + across);
          store(out + j * v_plane + t, a - e);
          store(out + (4 + j) * v_plane + t, b + e);
          store(out + (8 + j) * v_plane + t, e - b);
          store(out + (12 + j) * v_plane + t, b - f);
        }
      tile += p.last - p.first;
    }
    float* rest = v + (long long)c * v_row + (end - begin);
    for (int p = 0; p < 16; ++p)
      for (int t = end - begin; t < v_row; ++t) rest[p * v_plane + t - (end - begin)] = 0;
  }
}

// y (N, n_out, oh, ow). A block has `group` tiles of all images and outs_in_part of the outputs. It
// adds up the inputs a chunk of them at a time; where that is all of them, it makes only outs_at_once outputs at a
// time, whose sums stay in L1. grid (ceil(tiles / group), ceil(n_out / outs_in_part)), block 1.
extern "C" __global__ void winograd(float* y, const float* x, const float* u, const float* bias,
                                    int n_images, int n_in, int n_out, int h, int w, int oh,
                                    int ow, int top, int left, int group, int outs_in_part,
                                    int outs_at_once, int chunk) {
  const int across = (ow + 1) / 2, in_image = (oh + 1) / 2 * across;
  const int begin = blockIdx.x * group, end = min(begin + group, n_images * in_image);
  const int plane = chunk * group + 16, sums_plane = outs_at_once * group;
  alignas(64) float v[16 * plane + 256];
  alignas(64) float sums[16 * sums_plane];
  alignas(64) float lines[4 * (group + 16)];
  const int lines_row = 2 * (group + 16);
  const int first_out = blockIdx.y * outs_in_part, last_out = min(first_out + outs_in_part, n_out);
  for (int o = first_out; o < last_out; o += outs_at_once) {
    const int rows = min(outs_at_once, last_out - o);
    for (int c = 0; c < n_in; c += chunk) {
      const int n = min(chunk, n_in - c);
      if (o == first_out)
        winograd_inputs(v, plane, group, x, c, n, n_in, h, w, top, left, begin, end, in_image,
                        across);
      for (int p = 0; p < 16; ++p)
        for (int m = 0; m < rows; m += TILE_ROWS)
          rows_product(sums + p * sums_plane + m * group, group,
                       u + ((c / chunk * 16LL + p) * n_out + o + m) * chunk, chunk, v + p * plane,
                       group, n, min(TILE_ROWS, rows - m), group, c > 0);
    }
    for (int m = 0; m < rows; ++m) {
      const float b = bias ? bias[o + m] : 0.0f;
      for (int t = 0; t < group; t += LANES) {
        const float* s = sums + m * group + t;
        Vec r[8];
        for (int j = 0; j < 4; ++j) {
          const Vec m0 = load(s + j * sums_plane), m1 = load(s + (4 + j) * sums_plane);
          const Vec m2 = load(s + (8 + j) * sums_plane), m3 = load(s + (12 + j) * sums_plane);
          r[j] = m0 + m1 + m2, r[4 + j] = m1 - m2 - m3;
        }
        for (int i = 0; i < 2; ++i) {
          alignas(64) float a[LANES], c[LANES];
          store(a, r[4 * i] + r[4 * i + 1] + r[4 * i + 2] + b);
          store(c, r[4 * i + 1] - r[4 * i + 2] - r[4 * i + 3] + b);
          float* to = lines + i * lines_row + 2 * t;
          SIMD for (int k = 0; k < LANES; ++k) to[2 * k] = a[k], to[2 * k + 1] = c[k];
        }
      }
      for (int tile = begin; tile < end;) {
        const Piece p = piece_of(tile, end, in_image, across);
        float* out = y + ((long long)p.image * n_out + o + m) * oh * ow;
        for (int row = p.top_row; row <= p.bottom_row; ++row) {
          const int from = max(p.first, row * across), to = min(p.last, (row + 1) * across);
          const int col = 2 * (from - row * across), n = min(2 * (to - from), ow - col);
          for (int i = 0; i < min(2, oh - 2 * row); ++i) {
            const float* line = lines + i * lines_row + 2 * (tile - begin + from - p.first);
            float* at = out + (2 * row + i) * ow + col;
            copy(at, line, n);
          }
        }
        tile += p.last - p.first;
      }
    }
  }
}

// Of the gradient gy (N, n_out, oh, ow), A g A^T of its tiles, as m (16, n_tiles, outs): `outs`
// outputs side by side, the first one first_out; zeros past the last.
__forceinline__ void winograd_gradients(float* m, int n_tiles, int outs, const float* gy,
                                        int first_out, int n_out, int oh, int ow, int begin,
                                        int end, int in_image, int across) {
  alignas(64) float pixels[(4 * n_tiles + 4 * ow) * 16], zeros[16] = {};
  const long long plane = (long long)n_tiles * outs;
  for (int o0 = 0; o0 < outs; o0 += 16)
    for (int tile = begin; tile < end;) {
      const Piece p = piece_of(tile, end, in_image, across);
      const int top = 2 * p.top_row, rows = min(2 * p.bottom_row + 2, oh) - top;
      pixels_first(pixels, gy + ((long long)p.image * n_out + first_out + o0) * oh * ow + top * ow,
                   oh * ow, n_out - first_out - o0, rows * ow);
      for (int t = p.first; t < p.last; ++t) {
        const int h = t / across * 2, w = t % across * 2;
        const float* at = pixels + ((h - top) * ow + w) * 16;
        const bool below = h + 1 < oh, right = w + 1 < ow;
        float* to = m + (tile - begin + t - p.first) * outs + o0;
        for (int o = 0; o < 16; o += LANES) {
          Vec r[8];
          for (int j = 0; j < 2; ++j) {
            const Vec a = load(j == 0 || right ? at + j * 16 + o : zeros);
            const Vec b = load(below && (j == 0 || right) ? at + (ow + j) * 16 + o : zeros);
            r[j] = a, r[2 + j] = a + b, r[4 + j] = a - b, r[6 + j] = -b;
          }
          for (int i = 0; i < 4; ++i) {
            const Vec a = r[2 * i], b = r[2 * i + 1];
            store(to + 4 * i * plane + o, a), store(to + (4 * i + 1) * plane + o, a + b);
            store(to + (4 * i + 2) * plane + o, a - b), store(to + (4 * i + 3) * plane + o, -b);
          }
        }
      }
      tile += p.last - p.first;
    }
}

// sums (parts, 16, n_in, outs): of the tiles of a part, V M; outs: n_out up to a multiple of 16.
// grid (parts, parts of the inputs, parts of the outputs), block 1.
extern "C" __global__ void winograd_weight_sums(float* sums, const float* x, const float* gy,
                                                int n_images, int n_in, int n_out, int h, int w,
                                                int oh, int ow, int top, int left, int group,
                                                int ins_in_part, int outs_in_part,
                                                int tiles_in_part) {
  const int across = (ow + 1) / 2, in_image = (oh + 1) / 2 * across;
  const int first_in = blockIdx.y * ins_in_part, n = min(ins_in_part, n_in - first_in);
  const int all_outs = (n_out + 15) / 16 * 16, first_out = blockIdx.z * outs_in_part;
  const int outs = min(outs_in_part, all_outs - first_out);
  const int first = blockIdx.x * tiles_in_part;
  const int last = min(first + tiles_in_part, n_images * in_image);
  const long long v_plane = (long long)n * group + 16, m_plane = (long long)group * outs;
  alignas(64) float v[16 * v_plane + 256];
  alignas(64) float m[16 * m_plane];
  sums += (blockIdx.x * 16LL * n_in + first_in) * all_outs + first_out;
  for (int begin = first; begin < last; begin += group) {
    const int end = min(begin + group, last);
    winograd_inputs(v, v_plane, group, x, first_in, n, n_in, h, w, top, left, begin, end, in_image,
                    across);
    winograd_gradients(m, group, outs, gy, first_out, n_out, oh, ow, begin, end, in_image, across);
    for (int p = 0; p < 16; ++p)
      for (int c = 0; c < n; c += TILE_ROWS)
        rows_product(sums + ((long long)p * n_in + c) * all_outs, all_outs,
                     v + p * v_plane + c * group, group, m + p * m_plane, outs, end - begin,
                     min(TILE_ROWS, n - c), outs, begin > first);
  }
}

// gw (n_out, n_in, 3, 3) = G^T (the sum over all parts) G. grid ceil(n_in / TOGETHER), block 1.
extern "C" __global__ void winograd_weight(float* gw, const float* sums, int n_parts, int n_in,
                                           int n_out) {
  const int outs = (n_out + 15) / 16 * 16, first = blockIdx.x * TOGETHER;
  const long long plane = (long long)n_in * outs;
  for (int o0 = 0; o0 < n_out; o0 += 16)
    for (int c = first; c < min(first + TOGETHER, n_in); ++c) {
      float s[16][16], t[12][16], r[9][16];
      for (int p = 0; p < 16; ++p) {
        const float* from = sums + p * plane + (long long)c * outs + o0;
        SIMD for (int o = 0; o < 16; ++o) s[p][o] = from[o];
        for (int part = 1; part < n_parts; ++part) {
          from += 16 * plane;
          SIMD for (int o = 0; o < 16; ++o) s[p][o] += from[o];
        }
      }
      for (int j = 0; j < 4; ++j)
        SIMD for (int o = 0; o < 16; ++o) {
          const float sum = 0.5f * (s[4 + j][o] + s[8 + j][o]);
          t[j][o] = s[j][o] + sum, t[4 + j][o] = 0.5f * (s[4 + j][o] - s[8 + j][o]);
          t[8 + j][o] = sum + s[12 + j][o];
        }
      for (int i = 0; i < 3; ++i)
        SIMD for (int o = 0; o < 16; ++o) {
          const float sum = 0.5f * (t[4 * i + 1][o] + t[4 * i + 2][o]);
          r[3 * i][o] = t[4 * i][o] + sum;
          r[3 * i + 1][o] = 0.5f * (t[4 * i + 1][o] - t[4 * i + 2][o]);
          r[3 * i + 2][o] = sum + t[4 * i + 3][o];
        }
      for (int o = 0; o < min(16, n_out - o0); ++o)
        for (int i = 0; i < 9; ++i) gw[((long long)(o0 + o) * n_in + c) * 9 + i] = r[i][o];
    }
}

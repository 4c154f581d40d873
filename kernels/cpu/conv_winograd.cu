// 3 x 3 convolutions with stride 1 on a CPU, with Winograd's F(2 x 2, 3 x 3). It needs 16 products
// for 2 x 2 results, and the plain formula needs 36. C is the number of input channels, O the
// number of output channels.
//
//   image (padded)     a tile: 4 x 4 pixels d make 2 x 2 results y. The next tile is 2 pixels away
//   +-------+..
//   | d d d d :        V = B^T d B     4 x 4 numbers for each tile of an input channel
//   | d d d d :        U = G g G^T     4 x 4 numbers for each filter g
//   | d d d d :        M = U V         16 products of matrices (O, C) @ (C, tiles)
//   | d d d d :        y = A^T M A     4 x 4 sums become 2 x 2 results
//   +-------+..
//                  [1  0 -1  0]        [ 1   0   0 ]        [1  0]
//            B^T = [0  1  1  0]    G = [1/2 1/2 1/2]    A = [1  1]
//                  [0 -1  1  0]        [1/2-1/2 1/2]        [1 -1]
//                  [0  1  0 -1]        [ 0   0   1 ]        [0 -1]
//
//   by input     the same formulas with gy in place of x. C and O are exchanged, and each filter is
//                rotated by 180 degrees
//   by weight    gU = sum over the tiles of (A gy A^T) V, 16 products (O, tiles) @ (tiles, C)
//                gw = G^T gU G
//
// A thread computes a block of `group` tiles, from one or several images. Its stack holds V, which
// fits in the L2 cache, and the sums of a few outputs, which fit in L1. U needs additional memory:
// 16 / 9 = 1.8 times the weights of 128 outputs. If several threads share the tiles for the
// gradient of the weight, each of them needs its own gw.
//
// Source: Lavin & Gray 2016 (arXiv 1509.09308).
// Launch: minidl/ops/conv_cpu.py   Test: tests/ops/test_conv_cpu.py
#include "pixels.cuh"

constexpr int TOGETHER = 16;  // so few rows and columns of w at a time that they stay in L1
constexpr int PAST = 2 * 16;  // numbers after a line that vectors may touch

// Writes U = G g G^T (chunks, 16, n_rows, chunk) from the weights w. `depth` is cut into chunks of
// `chunk` numbers, a multiple of TOGETHER. If turned is 1, each filter is rotated by 180 degrees.
// grid ceil(n_rows / TOGETHER), block 1.
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

// The sizes of a convolution, and the tiles of one block. The tiles are stored as runs. A run has
// neighbouring tiles of one row.
struct Tiles {
  int channels, h, w, top, left;  // channels, size and padding of the images that are read
  int across, in_image;           // the number of tiles in a row, and in an image
  const Run* runs;
  int n_runs, n;  // the tiles of the block
};

// Applies B^T along each line of `image`, to the 4 columns of each of the `across` tiles. A line
// begins `pitch` numbers after the line before. The function writes 4 planes for the even lines and
// 4 planes for the odd lines.
__forceinline__ void along_rows(float* q, int plane, const float* image, int pitch, int n_lines,
                                int across) {
  for (int r = 0; r < n_lines; ++r, image += pitch) {
    float* to = q + (r & 1) * 4 * plane + (r >> 1) * across;
    for (int j0 = 0; j0 < across; j0 += 16) {
      float a[4][16];
      SIMD for (int j = 0; j < 16; ++j) {
        const float* d = image + 2 * (j0 + j);
        a[0][j] = d[0], a[1][j] = d[1], a[2][j] = d[2], a[3][j] = d[3];
      }
      SIMD for (int j = 0; j < 16; ++j) {
        to[j0 + j] = a[0][j] - a[2][j];
        to[plane + j0 + j] = a[1][j] + a[2][j];
        to[2 * plane + j0 + j] = a[2][j] - a[1][j];
        to[3 * plane + j0 + j] = a[1][j] - a[3][j];
      }
    }
  }
}

// Writes V of the block's tiles, for the channels from first_channel on. V has 16 planes
// (n_channels, v_pitch). A plane begins v_plane numbers after the plane before. After the last tile
// there are zeros.
__forceinline__ void fill_inputs(float* v, int v_plane, int v_pitch, const float* x,
                                 const Tiles& t, int first_channel, int n_channels) {
  const int most_lines = 2 * min(t.n_runs, t.in_image / t.across) + 2;
  const int pitch = 2 * t.across + 2 + PAST, plane = most_lines / 2 * t.across + 2 * PAST;
  alignas(64) float image[most_lines * pitch], q[8 * plane];
  zero(image, most_lines * pitch);
  const int skip = max(t.left, 0), cut = max(-t.left, 0);
  const int width = min(t.w - cut, 2 * t.across + 2 - skip);
  for (int c = 0; c < n_channels; ++c, v += v_pitch) {
    for (int i = 0, next; i < t.n_runs; i = next) {
      next = next_image(t.runs, t.n_runs, i);
      const Run &first = t.runs[i], &last = t.runs[next - 1];
      const float* from =
          x + ((long long)first.image * t.channels + first_channel + c) * t.h * t.w + cut;
      const int n_lines = 2 * (last.row - first.row) + 4, above = 2 * first.row - t.top;
      for (int r = 0; r < n_lines; ++r) {
        float* to = image + r * pitch + skip;
        if (above + r < 0 || above + r >= t.h) zero(to, width);
        else copy(to, from + (above + r) * t.w, width);
      }
      along_rows(q, plane, image, pitch, n_lines, t.across);
      for (int k = first.at; k < last.at + last.n; k += LANES)  // along columns
        for (int j = 0; j < 4; ++j) {
          const float* even = q + j * plane + first.column + k - first.at;
          const float* odd = even + 4 * plane;
          const Vec a = load(even), b = load(odd);
          const Vec c = load(even + t.across), d = load(odd + t.across);
          float* to = v + j * v_plane + k;
          store(to, a - c);
          store(to + 4 * v_plane, b + c);
          store(to + 8 * v_plane, c - b);
          store(to + 12 * v_plane, b - d);
        }
    }
    for (int p = 0; p < 16; ++p) zero(v + p * v_plane + t.n, v_pitch - t.n);
  }
}

// Writes the results A^T m A + bias of `group` tiles, in two lines. The second line begins
// lines_pitch numbers after the first. A plane of m begins m_plane numbers after the plane before.
__forceinline__ void results(float* lines, int lines_pitch, const float* m, int m_plane, int group,
                             float bias) {
  for (int t = 0; t < group; t += LANES, m += LANES, lines += 2 * LANES) {
    Vec r[8];
    for (int j = 0; j < 4; ++j) {
      const Vec m0 = load(m + j * m_plane), m1 = load(m + (4 + j) * m_plane);
      const Vec m2 = load(m + (8 + j) * m_plane), m3 = load(m + (12 + j) * m_plane);
      r[j] = m0 + m1 + m2, r[4 + j] = m1 - m2 - m3;
    }
    for (int i = 0; i < 2; ++i) {
      alignas(64) float a[LANES], b[LANES];
      store(a, r[4 * i] + r[4 * i + 1] + r[4 * i + 2] + bias);
      store(b, r[4 * i + 1] - r[4 * i + 2] - r[4 * i + 3] + bias);
      float* to = lines + i * lines_pitch;
      SIMD for (int k = 0; k < LANES; ++k) to[2 * k] = a[k], to[2 * k + 1] = b[k];
    }
  }
}

// Writes n_out channels of y (n_images, y_channels, oh, ow): the convolution of x and w, plus bias.
// bias may be null. A block computes `group` tiles of outs_in_part channels of y. It goes through
// the channels of x in chunks. If there is only one chunk, it computes outs_at_once channels of y
// at a time, so that their sums stay in L1.
// grid (ceil(tiles / group), ceil(n_out / outs_in_part)), block 1.
extern "C" __global__ void winograd(float* y, const float* x, const float* u, const float* bias,
                                    int n_images, int n_in, int n_out, int y_channels, int h,
                                    int w, int oh, int ow, int top, int left, int group,
                                    int outs_in_part, int outs_at_once, int chunk) {
  const int across = (ow + 1) / 2, in_image = (oh + 1) / 2 * across;
  const int begin = blockIdx.x * group, end = min(begin + group, n_images * in_image);
  Run runs[group];
  const int n_runs = runs_of(runs, begin, end, in_image, across, group);
  const Tiles tiles = {n_in, h, w, top, left, across, in_image, runs, n_runs, end - begin};
  const int plane = chunk * group + 16, m_plane = outs_at_once * group;
  const int lines_pitch = 2 * (group + 16);
  alignas(64) float v[16 * plane + PAST], m[16 * m_plane], lines[2 * lines_pitch];
  const int first_out = blockIdx.y * outs_in_part, last_out = min(first_out + outs_in_part, n_out);
  for (int o = first_out; o < last_out; o += outs_at_once) {
    const int n_rows = min(outs_at_once, last_out - o);
    for (int c = 0; c < n_in; c += chunk) {
      const int n = min(chunk, n_in - c);
      if (o == first_out) fill_inputs(v, plane, group, x, tiles, c, n);
      for (int p = 0; p < 16; ++p) {
        const float* rows = u + ((c / chunk * 16LL + p) * n_out + o) * chunk;
        for (int row = 0; row < n_rows; row += TILE_ROWS)
          rows_product(m + p * m_plane + row * group, group, rows + (long long)row * chunk, chunk,
                       v + p * plane, group, n, min(TILE_ROWS, n_rows - row), group, c > 0);
      }
    }
    for (int row = 0; row < n_rows; ++row) {
      results(lines, lines_pitch, m + row * group, m_plane, group, bias ? bias[o + row] : 0.0f);
      for (const Run* run = runs; run < runs + n_runs; ++run) {
        float* to = y + (((long long)run->image * y_channels + o + row) * oh + 2 * run->row) * ow +
                    2 * run->column;
        const int n = min(2 * run->n, ow - 2 * run->column);
        copy(to, lines + 2 * run->at, n);
        if (2 * run->row + 1 < oh) copy(to + ow, lines + lines_pitch + 2 * run->at, n);
      }
    }
  }
}

// -- the gradient of the weight

// Writes m (16, group, outs): A g A^T for each tile g of the block, from gy (n_images, n_out, oh,
// ow). The `outs` output channels begin at first_out. After the last channel there are zeros.
__forceinline__ void fill_gradients(float* m, int group, int outs, const float* gy, int oh, int ow,
                                    int first_out, int n_out, const Tiles& t) {
  const int plane = group * outs;
  alignas(64) float pixels[(4 * group + 4 * ow) * 16], zeros[16] = {};
  for (int o0 = 0; o0 < outs; o0 += 16)
    for (int i = 0, next; i < t.n_runs; i = next) {
      next = next_image(t.runs, t.n_runs, i);
      const int top = 2 * t.runs[i].row, bottom = min(2 * t.runs[next - 1].row + 2, oh);
      const long long channel = (long long)t.runs[i].image * n_out + first_out + o0;
      pixels_first(pixels, gy + (channel * oh + top) * ow, oh * ow, n_out - first_out - o0,
                   (bottom - top) * ow);
      for (const Run* run = t.runs + i; run < t.runs + next; ++run)
        for (int k = 0; k < run->n; ++k) {
          const int row = 2 * run->row, column = 2 * (run->column + k);
          const float* at = pixels + ((row - top) * ow + column) * 16;
          const bool below = row + 1 < oh, right = column + 1 < ow;
          float* to = m + (run->at + k) * outs + o0;
          for (int o = 0; o < 16; o += LANES) {
            Vec r[8];
            for (int j = 0; j < 2; ++j) {
              const Vec a = load(j == 0 || right ? at + j * 16 + o : zeros);
              const Vec b = load(below && (j == 0 || right) ? at + (ow + j) * 16 + o : zeros);
              r[j] = a, r[2 + j] = a + b, r[4 + j] = a - b, r[6 + j] = -b;
            }
            for (int p = 0; p < 4; ++p) {
              const Vec a = r[2 * p], b = r[2 * p + 1];
              store(to + 4 * p * plane + o, a), store(to + (4 * p + 1) * plane + o, a + b);
              store(to + (4 * p + 2) * plane + o, a - b), store(to + (4 * p + 3) * plane + o, -b);
            }
          }
        }
    }
}

// Writes a part of gw (n_out, n_in, 3, 3) = G^T S G from the sums S (16, n, outs). The part has the
// input channels [first_in, first_in + n). Its output channels begin at first_out.
__forceinline__ void write_gradient(float* gw, const float* sums, int n, int outs, int first_in,
                                    int n_in, int first_out, int n_out) {
  for (int o0 = 0; o0 < min(outs, n_out - first_out); o0 += 16)
    for (int c = 0; c < n; ++c) {
      float t[12][16], r[9][16];
      for (int j = 0; j < 4; ++j)
        SIMD for (int o = 0; o < 16; ++o) {
          const float* s = sums + (j * n + c) * outs + o0 + o;
          const int row = 4 * n * outs;  // from one row of the 4 x 4 numbers to the next
          const float a = s[0], b = s[row], d = s[2 * row], e = s[3 * row];
          t[j][o] = a + 0.5f * (b + d), t[4 + j][o] = 0.5f * (b - d);
          t[8 + j][o] = 0.5f * (b + d) + e;
        }
      for (int i = 0; i < 3; ++i)
        SIMD for (int o = 0; o < 16; ++o) {
          const float a = t[4 * i][o], b = t[4 * i + 1][o], d = t[4 * i + 2][o];
          r[3 * i][o] = a + 0.5f * (b + d), r[3 * i + 1][o] = 0.5f * (b - d);
          r[3 * i + 2][o] = 0.5f * (b + d) + t[4 * i + 3][o];
        }
      for (int o = 0; o < min(16, n_out - first_out - o0); ++o) {
        float* to = gw + ((long long)(first_out + o0 + o) * n_in + first_in + c) * 9;
        for (int i = 0; i < 9; ++i) to[i] = r[i][o];
      }
    }
}

// Writes gw (parts, n_out, n_in, 3, 3). Each part sums over its own tiles. outs_in_part is a
// multiple of 16.
// grid (parts, parts of the inputs, parts of the outputs), block 1.
extern "C" __global__ void winograd_weight(float* gw, const float* x, const float* gy,
                                           int n_images, int n_in, int n_out, int h, int w, int oh,
                                           int ow, int top, int left, int group, int ins_in_part,
                                           int outs_in_part, int tiles_in_part) {
  const int across = (ow + 1) / 2, in_image = (oh + 1) / 2 * across;
  const int first_in = blockIdx.y * ins_in_part, n = min(ins_in_part, n_in - first_in);
  const int first_out = blockIdx.z * outs_in_part;
  const int outs = min(outs_in_part, (n_out - first_out + 15) / 16 * 16);
  const int first = blockIdx.x * tiles_in_part;
  const int last = min(first + tiles_in_part, n_images * in_image);
  const int v_plane = n * group + 16, m_plane = group * outs;
  alignas(64) float v[16 * v_plane + PAST], m[16 * m_plane], sums[16 * n * outs];
  Run runs[group];
  for (int begin = first; begin < last; begin += group) {
    const int end = min(begin + group, last);
    const int n_runs = runs_of(runs, begin, end, in_image, across, group);
    const Tiles tiles = {n_in, h, w, top, left, across, in_image, runs, n_runs, end - begin};
    fill_inputs(v, v_plane, group, x, tiles, first_in, n);
    fill_gradients(m, group, outs, gy, oh, ow, first_out, n_out, tiles);
    for (int p = 0; p < 16; ++p)
      for (int c = 0; c < n; c += TILE_ROWS)
        rows_product(sums + (p * n + c) * outs, outs, v + p * v_plane + c * group, group,
                     m + p * m_plane, outs, end - begin, min(TILE_ROWS, n - c), outs,
                     begin > first);
  }
  write_gradient(gw + (long long)blockIdx.x * n_out * n_in * 9, sums, n, outs, first_in, n_in,
                 first_out, n_out);
}

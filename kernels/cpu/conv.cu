// Convolution on a CPU, as a product with the matrix of columns (im2col). This matrix is not
// stored: a thread has only one panel of it at a time, on its stack. ../conv.cuh explains the
// method. For 3 x 3 filters with stride 1, conv_winograd.cu needs fewer products.
//
//   y[m, p] = sum over k = (c, u, v) of w[m, k] columns[k, p] + bias[m]     p: a pixel of an image
//
//   x, lines of channel c        panel: 64 pixels             The struct Geometry has one formula
//   with zeros around            of each k                    for forward and for the gradient of
//   0 0 0 0 0 0                  [ a b c d ... ]  u, v = 0 0  x. The gradient of x has one launch
//   0 a b c d 0   -> copies ->   [ b c d 0 ... ]         0 1  for each phase (conv.cuh).
//   0 e f g h 0                  [ e f g h ... ]         1 0
//
// A product for 6 outputs and 64 pixels stays in registers (product.cuh). The gradient of the
// input also needs a copy of the weights, in the order of a phase. The gradient of the weight is a
// sum of products gy panel^T. If several threads share the pixels, each of them needs its own gw.
// In a group with one channel, as in a depthwise convolution, only one of the 6 rows of a tile has
// work. For such groups conv_few goes pixel by pixel.
//
// Launch: minidl/ops/conv_cpu.py   Test: tests/ops/test_conv_cpu.py
#include "pixels.cuh"

// Tells which pixels of x a pixel of y reads. For one dimension, with r = 0 ... oh - 1 and u = 0
// ... kh - 1:
//   y[out_step r + out_first] = sum over u of w[u] x[step r + first + tap_step u]
struct Geometry {
  int n_images, in_channels, out_channels;  // channels of all groups together
  int h, w, oh, ow;                         // h, w: the size of x. oh, ow: the number of results r
  int kh, kw, step_h, step_w, first_h, first_w, tap_h, tap_w;
  int yh, yw, out_step_h, out_step_w, out_first_h, out_first_w;  // yh, yw: size of y

  // Returns the Geometry for only n columns of the result, from `column` on.
  __forceinline__ Geometry part(int column, int n) const {
    Geometry g = *this;
    g.ow = n, g.first_w += step_w * column, g.out_first_w += out_step_w * column;
    return g;
  }
};
#define GEOMETRY                                                                                   \
  int n_images, int in_channels, int out_channels, int h, int w, int oh, int ow, int kh, int kw,   \
      int step_h, int step_w, int first_h, int first_w, int tap_h, int tap_w, int yh, int yw,      \
      int out_step_h, int out_step_w, int out_first_h, int out_first_w
#define GEOMETRY_HERE                                                                              \
  {n_images, in_channels, out_channels, h, w, oh, ow, kh, kw, step_h, step_w, first_h, first_w,    \
   tap_h, tap_w, yh, yw, out_step_h, out_step_w, out_first_h, out_first_w}

constexpr int PANEL = 64;        // neighbouring pixels in the product: a multiple of LANES
constexpr int PAST = 2 * LANES;  // numbers after a line that vectors may touch
constexpr int WIDE = 512;        // pixels of a row. Longer rows are cut, because a stack is small

// The layout of a copy of some lines of an image, with zeros around them. A line has `pitch`
// numbers. If step_w is 2, a line has first its even columns, then its odd columns. If step_h is 2,
// the even lines come before the odd lines. So a tap reads neighbouring numbers for neighbouring
// pixels of a row. For the next row of pixels it reads `pitch` numbers later.
struct Lines {
  int above, left;  // line and column of the image where this copy begins
  int n_lines, n_columns, column_phase, pitch, line_phase, n_floats;

  __forceinline__ Lines(const Geometry& g, int n_rows) {
    above = g.first_h + min(0, g.tap_h * (g.kh - 1));
    left = g.first_w + min(0, g.tap_w * (g.kw - 1));
    n_lines = lines_of(g, n_rows);
    n_columns = g.step_w * (g.ow - 1) + abs(g.tap_w) * (g.kw - 1) + 1;
    column_phase = n_columns / g.step_w + 1;
    pitch = g.step_w * column_phase;
    line_phase = (n_lines / g.step_h + 1) * pitch;
    n_floats = g.step_h * line_phase + PAST;
  }

  // Returns how many lines of the image are read for n rows of pixels.
  static __forceinline__ int lines_of(const Geometry& g, int n) {
    return g.step_h * (n - 1) + abs(g.tap_h) * (g.kh - 1) + 1;
  }

  // Copies the lines that are read for n rows of pixels, from `row` on.
  __forceinline__ void fill(float* to, const Geometry& g, const float* image, int row,
                            int n) const {
    const int count = lines_of(g, n), first = g.step_h * row + above;
    for (int p = 0; p < g.step_w; ++p) {
      const int column = left + p;  // column of the image where this phase begins
      const int most = (n_columns - p + g.step_w - 1) / g.step_w;
      const int low = column < 0 ? min((g.step_w - 1 - column) / g.step_w, most) : 0;
      const int high = max(low, min(most, (g.w - column + g.step_w - 1) / g.step_w));
      for (int i = 0, odd = 0, half = 0; i < count; ++i) {  // i = half step_h + odd
        float* here = to + odd * line_phase + half * pitch + p * column_phase;
        const bool is_read = g.kh > 1 || odd == 0;
        if (++odd == g.step_h) odd = 0, ++half;
        if (!is_read) continue;
        const bool inside = first + i >= 0 && first + i < g.h && low < high;
        const int from = inside ? low : most, until = inside ? high : most;
        for (int j = 0; j < from; ++j) here[j] = 0;
        const float* pixels = image + (first + i) * g.w + column + g.step_w * low;
        if (inside && g.step_w == 1) copy(here + low, pixels, high - low);
        else if (inside) copy_each(here + low, pixels, high - low, g.step_w);
        for (int j = until; j < most; ++j) here[j] = 0;
      }
    }
  }

  // Returns the index of the number that tap (u, v) reads for the first pixel.
  __forceinline__ int at(const Geometry& g, int u, int v) const {
    const int line = g.tap_h * u + g.first_h - above, column = g.tap_w * v + g.first_w - left;
    return line % g.step_h * line_phase + line / g.step_h * pitch +
           column % g.step_w * column_phase + column / g.step_w;
  }
};

// Fills panels (n_channels kh kw, pitch). Each panel has the patches of `wide` pixels, one in each
// column. The columns after the last pixel are undefined.
__forceinline__ void fill_panels(float* panels, int wide, int pitch, const float* x,
                                 const Geometry& g, int first_channel, int n_channels,
                                 const Run* runs, int n_runs) {
  const bool in_parts = g.ow > WIDE;  // if true, panels are filled run by run
  const Geometry some = g.part(0, in_parts ? wide : g.ow);
  Lines lines(some, in_parts ? 1 : min(n_runs, g.oh));
  const int taps = g.kh * g.kw, panel = n_channels * taps * pitch;
  float image[lines.n_floats];
  int first[taps];
  for (int u = 0; u < g.kh; ++u)
    for (int v = 0; v < g.kw; ++v) first[u * g.kw + v] = lines.at(some, u, v);
  const int left = lines.left;
  for (int c = 0; c < n_channels; ++c, panels += taps * pitch)
    for (int i = 0, next; i < n_runs; i = next) {
      next = in_parts ? i + 1 : next_image(runs, n_runs, i);
      const int top = runs[i].row, begin = in_parts ? runs[i].column : 0;
      const long long channel = (long long)runs[i].image * g.in_channels + first_channel + c;
      lines.left = left + g.step_w * begin;
      lines.fill(image, some, x + channel * g.h * g.w, top, runs[next - 1].row - top + 1);
      for (int tap = 0; tap < taps; ++tap)
        for (const Run* run = runs + i; run < runs + next; ++run) {
          const float* from =
              image + first[tap] + (run->row - top) * lines.pitch + run->column - begin;
          float* to = panels + run->at / wide * panel + tap * pitch + run->at % wide;
          for (int k = 0; k < run->n; k += LANES) move(to + k, from + k);
        }
    }
}

// Writes n results to the image y, from row `row` and column `column` of the phase on.
__forceinline__ void write(float* y, const Geometry& g, int row, int column, int n,
                           const float* from) {
  y += (long long)(g.out_step_h * row + g.out_first_h) * g.yw + g.out_first_w +
       g.out_step_w * column;
  if (g.out_step_w == 1) copy(y, from, n);
  else
    for (int q = 0; q < n; ++q) y[g.out_step_w * q] = from[q];
}

// Computes y from weights (out_channels, n_in kh kw). bias: a number for each channel of y, or
// null. A block computes outs_in_part channels of y at n_pixels pixels. The pixels are numbered
// over all images. The block goes through the channels of x in chunks. If there is only one chunk,
// the block computes outs_at_once channels of y at a time, so that their sums stay in L1.
// grid (ceil(pixels / n_pixels), ceil(n_out / outs_in_part), groups), block 1.
extern "C" __global__ void conv_product(float* y, const float* x, const float* weights,
                                        const float* bias, int groups, int n_pixels,
                                        int outs_in_part, int outs_at_once, int chunk, GEOMETRY) {
  const Geometry g = GEOMETRY_HERE;
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int in_image = oh * ow, begin = blockIdx.x * n_pixels, depth = n_in * taps;
  const int end = min(begin + n_pixels, n_images * in_image);
  const bool whole = end - begin == n_pixels && begin / in_image == (end - 1) / in_image;
  const bool in_place = whole && taps == 1 && step_h == 1 && step_w == 1 && first_h == 0 &&
                        first_w == 0 && oh == h && ow == w;
  const int pitch = PANEL + LANES, n_panels = (n_pixels + PANEL - 1) / PANEL;
  alignas(64) float panels[in_place ? 16 : n_panels * chunk * taps * pitch];
  alignas(64) float sums[outs_at_once * n_pixels];
  Run runs[n_pixels];
  const int n_runs = runs_of(runs, begin, end, in_image, ow, PANEL);
  const int first_out = blockIdx.y * outs_in_part, last_out = min(first_out + outs_in_part, n_out);
  for (int o = first_out; o < last_out; o += outs_at_once) {
    const int rows = min(outs_at_once, last_out - o), first = blockIdx.z * n_out + o;
    for (int c = 0; c < n_in; c += chunk) {
      const int n = min(chunk, n_in - c), channel = blockIdx.z * n_in + c;
      if (!in_place && o == first_out)
        fill_panels(panels, PANEL, pitch, x, g, channel, n, runs, n_runs);
      const float* image = x + ((long long)runs[0].image * in_channels + channel) * in_image;
      for (int i = 0; i < n_panels; ++i) {
        const float* b = in_place ? image + begin % in_image + i * PANEL
                                  : panels + i * n * taps * pitch;
        for (int m = 0; m < rows; m += TILE_ROWS)
          rows_product(sums + m * n_pixels + i * PANEL, n_pixels,
                       weights + (long long)(first + m) * depth + c * taps, depth, b,
                       in_place ? in_image : pitch, n * taps, min(TILE_ROWS, rows - m),
                       min(PANEL, n_pixels - i * PANEL), c > 0);
      }
    }
    for (int m = 0; m < rows; ++m) {
      float* from = sums + m * n_pixels;
      if (bias)
        for (int t = 0; t < n_pixels; t += LANES) store(from + t, load(from + t) + bias[first + m]);
      for (const Run* run = runs; run < runs + n_runs; ++run)
        write(y + ((long long)run->image * out_channels + first + m) * yh * yw, g, run->row,
              run->column, run->n, from + run->at);
    }
  }
}

constexpr int TOGETHER = 16;  // so few rows and columns of w at a time that they stay in L1

// Copies the weights w to the array `to` (groups, n_rows, depth, kh, kw). A phase of the gradient
// of the input, or of a transposed convolution, needs the weights in this order. The strides of w
// are in elements.
// grid (ceil(n_rows / TOGETHER), groups), block 1.
extern "C" __global__ void conv_weights(float* to, const float* w, int n_rows, int depth, int kh,
                                        int kw, long long row_stride, long long depth_stride,
                                        int h_stride, int w_stride) {
  const int first = blockIdx.x * TOGETHER, taps = kh * kw;
  to += (long long)blockIdx.y * n_rows * depth * taps;
  w += (long long)blockIdx.y * depth * depth_stride;
  for (int d0 = 0; d0 < depth; d0 += TOGETHER)
    for (int row = first; row < min(first + TOGETHER, n_rows); ++row)
      for (int tap = 0; tap < taps; ++tap) {
        const float* from = w + row * row_stride + d0 * depth_stride + tap / kw * h_stride +
                            tap % kw * w_stride;
        float* here = to + ((long long)row * depth + d0) * taps + tap;
        for (int d = 0; d < min(TOGETHER, depth - d0); ++d)
          here[d * taps] = from[d * depth_stride];
      }
}

// Writes gb (channels), the sums of gy (n_images, channels, n_pixels) over images and pixels.
// grid channels, block 1.
extern "C" __global__ void conv_bias(float* gb, const float* gy, int n_images, int channels,
                                     int n_pixels) {
  double total = 0;
  for (int n = 0; n < n_images; ++n) {
    const float* from = gy + ((long long)n * channels + blockIdx.x) * n_pixels;
    float sum = 0;
    SIMD_SUM(sum) for (int i = 0; i < n_pixels; ++i) sum += from[i];
    total += sum;
  }
  gb[blockIdx.x] = (float)total;
}

// -- the gradient of the weight

// Writes the transpose of sums (n_rows, outs) to gw, which has `depth` numbers for each output.
__forceinline__ void write_gradient(float* gw, int depth, const float* sums, int n_rows, int outs,
                                    int n_out) {
  for (int o = 0; o < n_out; o += LANES)
    for (int k = 0; k < n_rows; k += LANES) {
      Vec r[LANES];
      for (int i = 0; i < LANES; ++i) r[i] = load(sums + min(k + i, n_rows - 1) * outs + o);
      transpose(r);
      for (int i = 0; i < min(LANES, n_out - o); ++i) {
        alignas(64) float line[LANES];
        store(line, r[i]);
        copy(gw + (long long)(o + i) * depth + k, line, min(LANES, n_rows - k));
      }
    }
}

// Writes gw (parts, out_channels, n_in kh kw) = gy panel^T. Each part sums over its own pixels.
// grid (parts, parts of the inputs x parts of the outputs, groups), block 1.
extern "C" __global__ void conv_weight(float* gw, const float* x, const float* gy, int groups,
                                       int n_pixels, int ins_in_part, int outs_in_part,
                                       int pixels_in_part, GEOMETRY) {
  const Geometry g = GEOMETRY_HERE;
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int in_parts = (n_in + ins_in_part - 1) / ins_in_part, in_image = oh * ow;
  const int first_in = blockIdx.y % in_parts * ins_in_part, n = min(ins_in_part, n_in - first_in);
  const int first_out = blockIdx.y / in_parts * outs_in_part;
  const int outs = min(outs_in_part, (n_out - first_out + 15) / 16 * 16);
  const int first = blockIdx.x * pixels_in_part, pitch = n_pixels + LANES;
  const int last = min(first + pixels_in_part, n_images * in_image);
  alignas(64) float panel[n * taps * pitch], m[n_pixels * outs], pixels[n_pixels * 16];
  alignas(64) float sums[n * taps * outs];
  Run runs[n_pixels];
  for (int begin = first; begin < last; begin += n_pixels) {
    const int end = min(begin + n_pixels, last);
    const int n_runs = runs_of(runs, begin, end, in_image, ow, n_pixels);
    fill_panels(panel, n_pixels, pitch, x, g, blockIdx.z * n_in + first_in, n, runs, n_runs);
    for (int o = 0; o < outs; o += 16)
      for (int i = 0, next; i < n_runs; i = next) {  // m (pixels, outs): gy with the outputs last
        next = next_image(runs, n_runs, i);
        const int channel = blockIdx.z * n_out + first_out + o;
        const int count = runs[next - 1].at + runs[next - 1].n - runs[i].at;
        pixels_first(pixels, gy + ((long long)runs[i].image * out_channels + channel) * in_image +
                     runs[i].row * ow + runs[i].column, in_image, n_out - first_out - o, count);
        for (int t = 0; t < count; ++t)
          for (int j = 0; j < 16; j += LANES)
            move(m + (runs[i].at + t) * outs + o + j, pixels + t * 16 + j);
      }
    for (int k = 0; k < n * taps; k += TILE_ROWS)
      rows_product(sums + k * outs, outs, panel + k * pitch, pitch, m, outs, end - begin,
                   min(TILE_ROWS, n * taps - k), outs, begin > first);
  }
  const long long row = (long long)blockIdx.x * out_channels + blockIdx.z * n_out + first_out;
  write_gradient(gw + row * n_in * taps + first_in * taps, n_in * taps, sums, n * taps, outs,
                 min(outs, n_out - first_out));
}

// -- pixel by pixel, for groups with so few channels that a product uses only a small part of a
// tile

constexpr int VECS = 4;  // sums that a loop adds up together: they do not wait for each other

// Computes the same as conv_product. A block computes some rows and columns of one channel of an
// image. The struct Lines stores the lines of x one after the other. So the loop computes all rows
// of y as one long row. It also computes numbers between two rows, which are not used.
// grid (ceil(oh / rows_in_part) ceil(ow / columns_in_part), out_channels, n_images), block 1.
extern "C" __global__ void conv_few(float* y, const float* x, const float* weights,
                                    const float* bias, int groups, int rows_in_part,
                                    int columns_in_part, GEOMETRY) {
  const Geometry all = GEOMETRY_HERE;
  const int parts = (ow + columns_in_part - 1) / columns_in_part;
  const int top = blockIdx.x / parts * rows_in_part, begin = blockIdx.x % parts * columns_in_part;
  const Geometry g = all.part(begin, min(columns_in_part, ow - begin));
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int out = blockIdx.y, first_in = out / n_out * n_in, rows = min(rows_in_part, oh - top);
  const Lines lines(g, rows);
  const int n = rows * lines.pitch;
  alignas(64) float image[n_in * lines.n_floats + VECS * LANES], results[n + VECS * LANES];
  int first[n_in * taps];
  for (int c = 0; c < n_in; ++c) {
    const long long channel = (long long)blockIdx.z * in_channels + first_in + c;
    lines.fill(image + c * lines.n_floats, g, x + channel * h * w, top, rows);
    for (int u = 0; u < kh; ++u)
      for (int v = 0; v < kw; ++v)
        first[(c * kh + u) * kw + v] = c * lines.n_floats + lines.at(g, u, v);
  }
  weights += (long long)out * n_in * taps;
  for (int i = 0; i < n; i += VECS * LANES) {
    Vec sum[VECS];
    UNROLL for (int j = 0; j < VECS; ++j) sum[j] = Vec{} + (bias ? bias[out] : 0.0f);
    for (int k = 0; k < n_in * taps; ++k)
      UNROLL for (int j = 0; j < VECS; ++j)
        sum[j] += weights[k] * load(image + first[k] + i + j * LANES);
    UNROLL for (int j = 0; j < VECS; ++j) store(results + i + j * LANES, sum[j]);
  }
  y += ((long long)blockIdx.z * out_channels + out) * yh * yw;
  for (int r = 0; r < rows; ++r) write(y, g, top + r, 0, g.ow, results + r * lines.pitch);
}

constexpr int TAPS = 3;  // taps of a filter row that use a gradient while it is in a register

// Writes gw (out_channels, n_in kh kw). grid (out_channels, n_in), block 1.
extern "C" __global__ void conv_few_weight(float* gw, const float* x, const float* gy, int groups,
                                           int rows_in_part, int columns_in_part, GEOMETRY) {
  const Geometry all = GEOMETRY_HERE;
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int out = blockIdx.x, in = out / n_out * n_in + blockIdx.y;
  const Lines largest(all.part(0, columns_in_part), rows_in_part);
  const int n_gradients = rows_in_part * largest.pitch + VECS * LANES;
  alignas(64) float image[largest.n_floats + VECS * LANES], gradients[n_gradients];
  Vec sums[taps + TAPS];
  for (int k = 0; k < taps; ++k) sums[k] = Vec{};
  zero(image, largest.n_floats + VECS * LANES);  // numbers that no line fills must be finite
  for (int begin = 0; begin < ow; begin += columns_in_part) {
    const Geometry g = all.part(begin, min(columns_in_part, ow - begin));
    for (int n = 0; n < n_images; ++n)
      for (int top = 0; top < oh; top += rows_in_part) {
        const int rows = min(rows_in_part, oh - top);
        const Lines lines(g, rows);
        const float* from = gy + (((long long)n * out_channels + out) * oh + top) * ow + begin;
        for (int r = 0; r < rows; ++r) {  // zeros between the rows
          copy(gradients + r * lines.pitch, from + r * ow, g.ow);
          for (int q = g.ow; q < lines.pitch; ++q) gradients[r * lines.pitch + q] = 0;
        }
        zero(gradients + rows * lines.pitch, VECS * LANES);
        lines.fill(image, g, x + ((long long)n * in_channels + in) * h * w, top, rows);
        for (int u = 0; u < kh; ++u)
          for (int v = 0; v < kw; v += TAPS) {
            const float* columns[TAPS];
            Vec sum[TAPS][VECS] = {};
            for (int t = 0; t < TAPS; ++t) columns[t] = image + lines.at(g, u, min(v + t, kw - 1));
            for (int i = 0; i < rows * lines.pitch; i += VECS * LANES)
              UNROLL for (int j = 0; j < VECS; ++j) {
                const Vec gradient = load(gradients + i + j * LANES);
                UNROLL for (int t = 0; t < TAPS; ++t)
                  sum[t][j] += gradient * load(columns[t] + i + j * LANES);
              }
            for (int t = 0; t < min(TAPS, kw - v); ++t)
              for (int j = 0; j < VECS; ++j) sums[u * kw + v + t] += sum[t][j];
          }
      }
  }
  for (int k = 0; k < taps; ++k) {
    float sum = 0;
    for (int l = 0; l < LANES; ++l) sum += sums[k][l];
    gw[((long long)out * n_in + blockIdx.y) * taps + k] = sum;
  }
}

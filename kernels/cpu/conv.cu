// Convolution on a CPU as an implicit product: the im2col matrix exists 64 columns at a time.
// kernels/conv.cu is the lesson; conv_winograd.cu has 3 x 3 kernels with stride 1, and
// conv_depthwise.cu a channel by itself.
#include "pixels.cuh"


// Where the pixels of a result are read and written, of images (n_images, ...), for each dimension:
//   y[.., out_step r + out_first, ..] = sum over u of w[u] x[.., step r + first + tap_step u, ..]
struct Geometry {
  int n_images, in_channels, out_channels;  // of the whole image, all groups
  int h, w, oh, ow;                         // of x; how many r and columns
  int kh, kw, step_h, step_w, first_h, first_w, tap_h, tap_w;
  int yh, yw, out_step_h, out_step_w, out_first_h, out_first_w;  // of y
};
#define GEOMETRY                                                                                   \
  int n_images, int in_channels, int out_channels, int h, int w, int oh, int ow, int kh, int kw,   \
      int step_h, int step_w, int first_h, int first_w, int tap_h, int tap_w, int yh, int yw,      \
      int out_step_h, int out_step_w, int out_first_h, int out_first_w
#define GEOMETRY_HERE                                                                              \
  {n_images, in_channels, out_channels, h, w, oh, ow, kh, kw, step_h, step_w, first_h, first_w,    \
   tap_h, tap_w, yh, yw, out_step_h, out_step_w, out_first_h, out_first_w}

constexpr int PANEL = 64;           // pixels side by side in the product: a multiple of LANES
constexpr int PAST = 2 * LANES;  // numbers behind a line that vectors may touch

// The lines of an image that a panel needs, with zeros around: `pitch` numbers each. With step_w 2
// the even columns come first, then the odd ones, so that the columns of a tap lie side by side.
struct Lines {
  int above, left;    // the first line and column, of the pixel (0, 0)
  int n_columns, phase, pitch;
  __forceinline__ Lines(const Geometry& g) {
    above = g.first_h + min(0, g.tap_h * (g.kh - 1));
    left = g.first_w + min(0, g.tap_w * (g.kw - 1));
    n_columns = g.step_w * (g.ow - 1) + abs(g.tap_w) * (g.kw - 1) + 1;
    phase = n_columns / g.step_w + 1 + PAST;
    pitch = g.step_w * phase;
  }
  // How many lines n rows of pixels need.
  static __forceinline__ int needed(const Geometry& g, int n) {
    return g.step_h * (n - 1) + abs(g.tap_h) * (g.kh - 1) + 1;
  }
  // Lines of n rows of pixels, the first one `row`. What is outside of the image is expected to be
  // zero, but for lines above and below it: other images may have had theirs there.
  __forceinline__ void fill(float* to, const Geometry& g, const float* image, int row, int n) {
    for (int i = 0; i < needed(g, n); ++i, to += pitch) {
      if (g.kh == 1 && i % g.step_h) continue;  // no tap reads it
      const int line = g.step_h * row + above + i;
      for (int p = 0; p < g.step_w; ++p) {
        const int column = left + p;  // of the image, where this phase begins
        const int low = column < 0 ? (-column + g.step_w - 1) / g.step_w : 0;
        const int most = (n_columns - p + g.step_w - 1) / g.step_w;
        const int high = min(most, (g.w - column + g.step_w - 1) / g.step_w);
        if (low >= high) continue;
        float* start = to + p * phase + low;
        if (line < 0 || line >= g.h)
          for (int j = 0; j < high - low; ++j) start[j] = 0;
        else if (g.step_w == 1)
          copy(start, image + line * g.w + column + low, high - low);
        else
          copy_each(start, image + line * g.w + column + g.step_w * low, high - low, g.step_w);
      }
    }
  }
  // Of a tap, where its first column is in `fill`'s memory.
  __forceinline__ int at(const Geometry& g, int u, int v) {
    const int line = g.tap_h * u + g.first_h - above, column = g.tap_w * v + g.first_w - left;
    return line * pitch + column % g.step_w * phase + column / g.step_w;
  }
};

// panels (n_channels kh kw, pitch), one for each `wide` pixels: a column is the patch under a pixel.
// The numbers behind the last pixel may be anything.
__forceinline__ void fill_panels(float* panels, int wide, int pitch, const float* x,
                                 const Geometry& g, int first_channel, int n_channels,
                                 const Run* runs, int n_runs) {
  Lines lines(g);
  const int taps = g.kh * g.kw;
  const int n_image = Lines::needed(g, min(n_runs, g.oh)) * lines.pitch + PAST;
  float image[n_image];
  zero(image, n_image);
  int first[taps];  // of each tap, where its column for the pixel (0, 0) is
  for (int u = 0; u < g.kh; ++u)
    for (int v = 0; v < g.kw; ++v) first[u * g.kw + v] = lines.at(g, u, v);
  const int panel = n_channels * taps * pitch;
  for (int c = 0; c < n_channels; ++c, panels += taps * pitch)
    for (int i = 0, next; i < n_runs; i = next) {
      for (next = i + 1; next < n_runs && runs[next].image == runs[i].image;) ++next;
      const int top = runs[i].row, n_rows = runs[next - 1].row - top + 1;
      const long long channel = (long long)runs[i].image * g.in_channels + first_channel + c;
      lines.fill(image, g, x + channel * g.h * g.w, top, n_rows);
      const int step = g.step_h * lines.pitch;
      for (int tap = 0; tap < taps; ++tap)
        for (int j = i; j < next; ++j) {
          const float* from = image + first[tap] + (runs[j].row - top) * step + runs[j].column;
          float* to = panels + runs[j].at / wide * panel + tap * pitch + runs[j].at % wide;
          for (int k = 0; k < runs[j].n; k += LANES) move(to + k, from + k);
        }
    }
}

// y of a group of channels, from weights (out_channels, n_in kh kw) of all groups; bias: a number
// for each channel of y, or none. A block has n_pixels of all images and outs_in_part of the outputs.
// It adds up the inputs a chunk of channels at a time; where that is all of them, it makes only
// outs_at_once outputs at a time, whose sums stay in L1.
// grid (ceil(pixels / n_pixels), ceil(n_out / outs_in_part), groups), block 1.
extern "C" __global__ void conv_product(float* y, const float* x, const float* weights,
                                        const float* bias, int groups, int n_pixels,
                                        int outs_in_part, int outs_at_once, int chunk, GEOMETRY) {
  const Geometry g = GEOMETRY_HERE;
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int in_image = oh * ow, begin = blockIdx.x * n_pixels;
  const int end = min(begin + n_pixels, n_images * in_image), depth = n_in * taps;
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
      for (int i = 0; i < n_panels; ++i)
        for (int m = 0; m < rows; m += TILE_ROWS)
          rows_product(sums + m * n_pixels + i * PANEL, n_pixels,
                       weights + (long long)(first + m) * depth + c * taps, depth,
                       in_place ? image + begin % in_image + i * PANEL : panels + i * n * taps * pitch,
                       in_place ? in_image : pitch, n * taps, min(TILE_ROWS, rows - m),
                       min(PANEL, n_pixels - i * PANEL), c > 0);
    }
    for (int m = 0; m < rows; ++m) {
      float* from = sums + m * n_pixels;
      if (bias)
        for (int t = 0; t < n_pixels; t += LANES) store(from + t, load(from + t) + bias[first + m]);
      for (const Run* run = runs; run < runs + n_runs; ++run) {
        float* image = y + ((long long)run->image * out_channels + first + m) * yh * yw;
        float* to = image + (long long)(out_step_h * run->row + out_first_h) * yw + out_first_w +
                    out_step_w * run->column;
        if (out_step_w == 1) copy(to, from + run->at, run->n);
        else
          for (int q = 0; q < run->n; ++q) to[out_step_w * q] = from[run->at + q];
      }
    }
  }
}

constexpr int TOGETHER = 16;  // rows whose weights lie side by side in w: a few lines of the cache

// The weights of a phase of the gradient by the input, or of a transposed convolution:
// to (groups, n_rows, depth, kh, kw) from w, each with its stride in elements.
// grid (ceil(n_rows / TOGETHER), groups), block 1.
extern "C" __global__ void conv_weights(float* to, const float* w, int n_rows, int depth, int kh,
                                        int kw, long long row_stride, long long depth_stride,
                                        int h_stride, int w_stride) {
  const int first = blockIdx.x * TOGETHER, taps = kh * kw;
  to += (long long)blockIdx.y * n_rows * depth * taps;
  w += (long long)blockIdx.y * depth * depth_stride;
  for (int d = 0; d < depth; ++d)
    for (int row = first; row < min(first + TOGETHER, n_rows); ++row)
      for (int u = 0; u < kh; ++u)
        for (int v = 0; v < kw; ++v)
          to[((long long)row * depth + d) * taps + u * kw + v] =
              w[row * row_stride + d * depth_stride + u * h_stride + v * w_stride];
}

// gb (channels): gy (n_images, channels, n_pixels) summed over images and pixels. grid channels,
// block 1.
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

// sums (parts, groups, n_in kh kw, outs): of the pixels of a part, panel gy^T; outs: the outputs of
// a group up to a multiple of 16. grid (parts, parts of the inputs, groups), block 1.
extern "C" __global__ void conv_weight_sums(float* sums, const float* x, const float* gy,
                                            int groups, int n_pixels, int ins_in_part,
                                            int pixels_in_part,
                                            GEOMETRY) {
  const Geometry g = GEOMETRY_HERE;
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int outs = (n_out + 15) / 16 * 16, in_image = oh * ow;
  const int first_in = blockIdx.y * ins_in_part, n = min(ins_in_part, n_in - first_in);
  const int first = blockIdx.x * pixels_in_part;
  const int last = min(first + pixels_in_part, n_images * in_image);
  const int pitch = n_pixels + LANES;
  alignas(64) float panel[n * taps * pitch];
  alignas(64) float m[n_pixels * outs], pixels[n_pixels * 16];
  Run runs[n_pixels];
  sums += (((long long)blockIdx.x * groups + blockIdx.z) * n_in + first_in) * taps * outs;
  for (int begin = first; begin < last; begin += n_pixels) {
    const int end = min(begin + n_pixels, last);
    const int n_runs = runs_of(runs, begin, end, in_image, ow, n_pixels);
    fill_panels(panel, n_pixels, pitch, x, g, blockIdx.z * n_in + first_in, n, runs, n_runs);
    for (int o = 0; o < outs; o += 16)
      for (int pixel = begin; pixel < end;) {
        const Piece p = piece_of(pixel, end, in_image, ow);
        const int channel = blockIdx.z * n_out + o;
        pixels_first(pixels, gy + ((long long)p.image * out_channels + channel) * in_image + p.first,
                     in_image, n_out - o, p.last - p.first);
        for (int t = 0; t < p.last - p.first; ++t)
          for (int i = 0; i < 16; i += LANES)
            move(m + (pixel - begin + t) * outs + o + i, pixels + t * 16 + i);
        pixel += p.last - p.first;
      }
    for (int k = 0; k < n * taps; k += TILE_ROWS)
      rows_product(sums + (long long)k * outs, outs, panel + k * pitch, pitch, m, outs,
                   end - begin, min(TILE_ROWS, n * taps - k), outs, begin > first);
  }
}

// gw (out_channels, depth): the sum over the parts, turned. grid (ceil(depth / LINES), groups),
// block 1.
constexpr int LINES = 64;
extern "C" __global__ void conv_weight(float* gw, const float* sums, int n_parts, int depth,
                                       int n_out) {
  const int outs = (n_out + 15) / 16 * 16, first = blockIdx.x * LINES, n = min(LINES, depth - first);
  const long long part = (long long)gridDim.y * depth * outs;
  sums += ((long long)blockIdx.y * depth + first) * outs;
  gw += (long long)blockIdx.y * n_out * depth + first;
  float turned[16][LINES];
  for (int o0 = 0; o0 < n_out; o0 += 16) {
    for (int k = 0; k < n; ++k) {
      float s[16];
      SIMD for (int o = 0; o < 16; ++o) s[o] = sums[k * outs + o0 + o];
      for (int i = 1; i < n_parts; ++i)
        SIMD for (int o = 0; o < 16; ++o) s[o] += sums[i * part + k * outs + o0 + o];
      for (int o = 0; o < 16; ++o) turned[o][k] = s[o];
    }
    for (int o = 0; o < min(16, n_out - o0); ++o)
      copy(gw + (long long)(o0 + o) * depth, turned[o], n);
  }
}

// -- groups with so few channels that a product would leave most of a tile empty: pixel by pixel

constexpr int ROWS = 4;  // at a time: four sums that do not wait for each other

// As conv_product. grid (ceil(oh / rows_in_part), out_channels, n_images), block 1.
extern "C" __global__ void conv_few(float* y, const float* x, const float* weights,
                                    const float* bias, int groups, int rows_in_part, GEOMETRY) {
  const Geometry g = GEOMETRY_HERE;
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int out = blockIdx.y, first_in = out / n_out * n_in, top = blockIdx.x * rows_in_part;
  const int rows = min(rows_in_part, oh - top);
  Lines lines(g);
  const int plane = Lines::needed(g, rows) * lines.pitch;
  const int wide = (ow + LANES - 1) / LANES * LANES;
  alignas(64) float image[n_in * plane + PAST], line[ROWS * wide];
  int first[n_in * taps];
  zero(image, n_in * plane + PAST);
  for (int c = 0; c < n_in; ++c) {
    const long long channel = (long long)blockIdx.z * in_channels + first_in + c;
    lines.fill(image + c * plane, g, x + channel * h * w, top, rows);
    for (int u = 0; u < kh; ++u)
      for (int v = 0; v < kw; ++v)
        first[(c * kh + u) * kw + v] = c * plane + lines.at(g, u, v);
  }
  weights += (long long)out * n_in * taps;
  y += ((long long)blockIdx.z * out_channels + out) * yh * yw;
  for (int r = 0; r < rows; r += ROWS) {
    const float* from[ROWS];
    for (int i = 0; i < ROWS; ++i) from[i] = image + min(r + i, rows - 1) * step_h * lines.pitch;
    for (int q = 0; q < ow; q += LANES) {
      Vec sum[ROWS];
      UNROLL for (int i = 0; i < ROWS; ++i) sum[i] = Vec{} + (bias ? bias[out] : 0.0f);
      for (int k = 0; k < n_in * taps; ++k)
        UNROLL for (int i = 0; i < ROWS; ++i) sum[i] += weights[k] * load(from[i] + first[k] + q);
      UNROLL for (int i = 0; i < ROWS; ++i) store(line + i * wide + q, sum[i]);
    }
    for (int i = 0; i < min(ROWS, rows - r); ++i) {
      float* to = y + (long long)(out_step_h * (top + r + i) + out_first_h) * yw + out_first_w;
      const float* here = line + i * wide;
      if (out_step_w == 1) copy(to, here, ow);
      else
        for (int q = 0; q < ow; ++q) to[out_step_w * q] = here[q];
    }
  }
}

// gw (out_channels, n_in kh kw). grid (out_channels, n_in), block 1.
extern "C" __global__ void conv_few_weight(float* gw, const float* x, const float* gy, int groups,
                                           int rows_in_part, GEOMETRY) {
  const Geometry g = GEOMETRY_HERE;
  const int n_in = in_channels / groups, n_out = out_channels / groups, taps = kh * kw;
  const int out = blockIdx.x, in = out / n_out * n_in + blockIdx.y;
  const int wide = (ow + LANES - 1) / LANES * LANES;
  Lines lines(g);
  const int n_image = Lines::needed(g, rows_in_part + ROWS) * lines.pitch + PAST;
  alignas(64) float image[n_image];
  zero(image, n_image);
  alignas(64) float gradients[(rows_in_part + ROWS) * wide];
  Vec sums[taps];
  int first[taps];
  for (int u = 0; u < kh; ++u)
    for (int v = 0; v < kw; ++v) {
      sums[u * kw + v] = Vec{};
      first[u * kw + v] = lines.at(g, u, v);
    }
  for (int n = 0; n < n_images; ++n)
    for (int top = 0; top < oh; top += rows_in_part) {
      const int rows = min(rows_in_part, oh - top);
      const float* from = gy + (((long long)n * out_channels + out) * oh + top) * ow;
      lines.fill(image, g, x + ((long long)n * in_channels + in) * h * w, top, rows + ROWS);
      for (int r = 0; r < rows; ++r) {
        store(gradients + (r + 1) * wide - LANES, Vec{});
        copy(gradients + r * wide, from + r * ow, ow);
      }
      for (int r = rows * wide; r < (rows + ROWS) * wide; r += LANES) store(gradients + r, Vec{});
      for (int k = 0; k < taps; ++k) {
        Vec sum[ROWS] = {};
        const int step = step_h * lines.pitch;
        for (int r = 0; r < rows; r += ROWS)
          for (int q = 0; q < wide; q += LANES)
            UNROLL for (int i = 0; i < ROWS; ++i)
              sum[i] += load(gradients + (r + i) * wide + q) *
                        load(image + first[k] + (r + i) * step + q);
        for (int i = 0; i < ROWS; ++i) sums[k] += sum[i];
      }
    }
  for (int k = 0; k < taps; ++k) {
    float sum = 0;
    for (int l = 0; l < LANES; ++l) sum += sums[k][l];
    gw[((long long)out * n_in + blockIdx.y) * taps + k] = sum;
  }
}

// Functions for the pixels of images (N, C, H, W), for convolutions on a CPU. They copy pixels, cut
// images into runs of pixels, and transpose images so that the channels of a pixel are neighbours.
// Test: tests/ops/test_conv_cpu.py
#pragma once
#include "product.cuh"

// Copies a vector through a register. A loop of loads and stores is slower for a few numbers,
// because g++ turns it into a call of memmove.
__forceinline__ void move(float* to, const float* from) {
  Vec x = load(from);
  IN_REGISTER(x);
  store(to, x);
}

// copy() copies n neighbouring numbers. copy_each() copies n numbers that lie `step` apart, to
// neighbouring places.
__forceinline__ void copy(float* to, const float* from, int n) {
  if (n >= LANES) {
    for (int i = 0; i + LANES <= n; i += LANES) move(to + i, from + i);
    move(to + n - LANES, from + n - LANES);  // the rest: copies some numbers again
  } else if (n >= 4) {
    typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
    for (int i = 0; i < n; i += 4) {
      const int at = min(i, n - 4);
      Four x = *(const Four*)(from + at);
      IN_REGISTER(x);
      *(Four*)(to + at) = x;
    }
  } else {
    for (int i = 0; i < n; ++i) to[i] = from[i];
  }
}

__forceinline__ void copy_each(float* to, const float* from, int n, int step) {
  int i = 0;
  if (step == 2)
    for (; i + 16 < n; i += 16)  // not up to n: a vector also reads the number after its last one
      SIMD for (int j = 0; j < 16; ++j) to[i + j] = from[2 * (i + j)];
  for (; i < n; ++i) to[i] = from[(long long)i * step];
}

__forceinline__ void zero(float* to, int n) {
  SIMD for (int i = 0; i < n; ++i) to[i] = 0;
}

// A run has n neighbouring pixels of a row of an image, from (row, column) on. at: the number of
// pixels between the first pixel of all runs and the first pixel of this run.
struct Run {
  int image, row, column, n, at;
};

// Cuts the pixels [begin, end) into runs. The pixels are numbered row by row and image by image. A
// run lies in one row, and in one panel of `wide` pixels. Returns the number of runs.
__forceinline__ int runs_of(Run* runs, int begin, int end, int in_image, int across, int wide) {
  int n = 0, image = begin / in_image, row = begin % in_image / across;
  int column = begin % in_image % across;
  for (int at = begin; at < end; ++n) {
    const int most = min(end - at, wide - (at - begin) % wide);
    runs[n] = {image, row, column, min(across - column, most), at - begin};
    at += runs[n].n, column += runs[n].n;
    if (column == across) column = 0, ++row;
    if (row * across == in_image) row = 0, ++image;
  }
  return n;
}

// Returns the index of the first run after runs[i] that is in another image.
__forceinline__ int next_image(const Run* runs, int n_runs, int i) {
  int next = i + 1;
  while (next < n_runs && runs[next].image == runs[i].image) ++next;
  return next;
}

// -- transposing, so that the channels of a pixel are neighbours

// Exchanges lanes of a and b. In the new a, lane l is a[l] if bit D of l is 0, else b[l - D]. In
// the new b, lane l is a[l + D] if bit D of l is 0, else b[l].
typedef int Lanes __attribute__((vector_size(VEC_BYTES)));

template <int D> __forceinline__ void exchange(Vec& a, Vec& b) {
#if defined(__clang__)
#define LOW(l) ((l) & D ? LANES + (l) - D : (l))
#define HIGH(l) ((l) & D ? LANES + (l) : (l) + D)
#define FOUR(F, l) F(l), F(l + 1), F(l + 2), F(l + 3)
#if VEC_BYTES == 64
#define ALL(F) FOUR(F, 0), FOUR(F, 4), FOUR(F, 8), FOUR(F, 12)
#elif VEC_BYTES == 32
#define ALL(F) FOUR(F, 0), FOUR(F, 4)
#else
#define ALL(F) FOUR(F, 0)
#endif
  const Vec low = __builtin_shufflevector(a, b, ALL(LOW));
  b = __builtin_shufflevector(a, b, ALL(HIGH));
#else
  Lanes from_low, from_high;
  UNROLL for (int l = 0; l < LANES; ++l) {
    from_low[l] = l & D ? LANES + l - D : l;
    from_high[l] = l & D ? LANES + l : l + D;
  }
  const Vec low = __builtin_shuffle(a, b, from_low);
  b = __builtin_shuffle(a, b, from_high);
#endif
  a = low;
}

template <int D> __forceinline__ void exchange_rows(Vec* r) {
  UNROLL for (int i = 0; i < LANES; ++i)
    if (!(i & D)) exchange<D>(r[i], r[i + D]);
}

// Transposes LANES rows of LANES numbers.
__forceinline__ void transpose(Vec* r) {
  if (LANES >= 16) exchange_rows<LANES >= 16 ? 8 : 1>(r);
  if (LANES >= 8) exchange_rows<LANES >= 8 ? 4 : 1>(r);
  exchange_rows<2>(r);
  exchange_rows<1>(r);
}

// Writes `to` (n_pixels, 16), which holds 16 channels of each pixel. Channel c of `from` begins at
// from[c * plane]. If n_channels < 16, the missing channels are 0.
__noinline__ void pixels_first(float* to, const float* from, long long plane, int n_channels,
                               int n_pixels) {
  for (int c = 0; c < 16; c += LANES)
    for (int t = 0; t < n_pixels; t += LANES) {
      Vec r[LANES];
      if (t + LANES <= n_pixels && c + LANES <= n_channels) {
        UNROLL for (int i = 0; i < LANES; ++i) r[i] = load(from + (c + i) * plane + t);
      } else {
        for (int i = 0; i < LANES; ++i) {
          alignas(64) float row[LANES] = {};
          for (int j = 0; j < min(LANES, n_pixels - t) && c + i < n_channels; ++j)
            row[j] = from[(c + i) * plane + t + j];
          r[i] = load(row);
        }
      }
      transpose(r);
      for (int i = 0; i < min(LANES, n_pixels - t); ++i) store(to + (t + i) * 16 + c, r[i]);
    }
}

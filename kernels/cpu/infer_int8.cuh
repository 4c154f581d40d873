// Layers of a plan whose weights have 8 or 4 bits, on a CPU. minidl/infer/quantize.py and
// minidl/infer/lower.py generate the kernels that call these functions. There are two kinds of
// layers:
//
//   int8      x u8, w s8, exact sums in 32 bits:   y = s_x s_w (x w^T - zero sum_k w) + bias
//             The number of products that a core computes in a cycle, for each rung:
//               one product in each lane                                                     16
//               AVX2: 4 products in each lane, with four instructions                        25
//               VNNI: 4 products in each lane, with one instruction (only u8 x s8)    64 to 128
//               AMX: 16 x 64 times 64 x 16 numbers in 16 cycles                            1024
//   weights   x float, w s8 or s4, converted to float in a register:     y = s_w (x w^T) + bias
//             Each token of a text needs a product with one row of x. It takes as long as reading
//             w, and w has only a quarter or an eighth of the bytes of a float w
//
// In both kinds w is stored in panels of 64 columns:
//   int8      A row of a panel has 4 values of k: 64 x 4 bytes. The 4 bytes of a column are
//             neighbours. k is padded with zeros to a multiple of 64, in w and in x
//   weights   With 8 bits a row of a panel has one k: 64 bytes. With 4 bits a row of 64 bytes has
//             two k, the first in the low half of each byte. 8 is added to each weight, so that it
//             is not negative. A column has one scale for every GROUP values of k
//
// Source: Jacob et al. 2018 (arXiv 1712.05877).   Test: tests/infer/test_quantize.py
#pragma once
#include "infer.cuh"
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#if !defined(__clang__)
#define VNNI __builtin_ia32_vpdpbusd_v16si
#elif __clang_major__ < 21  // clang 21 changed the types of its arguments
#define VNNI __builtin_ia32_vpdpbusd512
#endif
#endif
#if defined(__AVX512F__) && !defined(__clang__)  // g++ would convert the bytes one by one
#define AS_INTS(b) ((Sum)__builtin_ia32_pmovsxbd512_mask(b, Lanes{}, -1))
#else
#define AS_INTS(b) __builtin_convertvector(b, Sum)
#endif

#if defined(__AMX_INT8__) && defined(__linux__)
#define AMX
constexpr int FEW = 3;  // up to this number of rows, reading w takes longer than the products
#endif

typedef int Sum __attribute__((vector_size(64), aligned(4), may_alias));
typedef float Wide __attribute__((vector_size(64), aligned(4), may_alias));
typedef char Bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef int Lanes __attribute__((vector_size(64)));

// Writes the scale and the zero point of n numbers x to scale[0] and scale[1], as in ONNX's
// DynamicQuantizeLinear.
__forceinline__ void range_of(float* scale, const float* x, long long n) {
  float low = 0, high = 0;
  SIMD_MAX(low, high) for (long long i = 0; i < n; ++i) {
    high = high > x[i] ? high : x[i];
    low = low > -x[i] ? low : -x[i];
  }
  const float s = (high + low) / 255.0f;
  scale[0] = s;
  scale[1] = s > 0 ? fminf(fmaxf(rintf(low / s), 0.0f), 255.0f) : 0.0f;
}

// Quantises a row of x to u8, and pads it with zeros to WIDE bytes, a multiple of 64. Rounds to
// nearest, ties to even. The function divides by the scale, as ONNX does: a product with 1 / scale
// can round differently.
template <int K, int WIDE>
__forceinline__ void quantize_row(unsigned char* q, const float* x, float s, float zero) {
  const float by = s > 0 ? s : 1.0f;  // ?: and not fminf, because ?: becomes vector instructions
  SIMD for (int k = 0; k < K; ++k) {
    const float r = rintf(x[k] / by) + zero, low = r > 0.0f ? r : 0.0f;
    q[k] = (unsigned char)(int)(low < 255.0f ? low : 255.0f);
  }
  for (int k = K; k < WIDE; ++k) q[k] = 0;
}

// Copies the patches for row h of a convolution's result from an image (H, W, C). A patch has the
// pixels under the filter (KH, KW, C) for one pixel of the result. The next patch begins WIDE bytes
// later. Pixels beyond the image's edges get the value `zero`.
template <int OW, int H, int W, int C, int KH, int KW, int DOWN, int RIGHT, int TOP, int LEFT,
          int WIDE>
__forceinline__ void patches_row(unsigned char* rows, const unsigned char* image, int h,
                                 int zero) {
  for (int w = 0; w < OW; ++w, rows += WIDE) {
    const int left = w * RIGHT - LEFT;
    for (int i = 0; i < KH; ++i) {
      const int y = h * DOWN - TOP + i;
      unsigned char* to = rows + i * KW * C;
      const unsigned char* from = image + (y * (long long)W + left) * C;
      if (y >= 0 && y < H && left >= 0 && left + KW <= W) {
        for (int k = 0; k < KW * C; ++k) to[k] = from[k];
        continue;
      }
      for (int j = 0; j < KW; ++j) {
        const bool inside = y >= 0 && y < H && left + j >= 0 && left + j < W;
        for (int c = 0; c < C; ++c) to[j * C + c] = inside ? from[j * C + c] : zero;
      }
    }
    for (int k = KH * KW * C; k < WIDE; ++k) rows[k] = 0;
  }
}

__forceinline__ Sum dot4(Sum sum, int x, const signed char* w) {
#ifdef VNNI
  return (Sum)VNNI((Lanes)sum, (Lanes)(Sum{} + x), (Lanes)*(const Sum*)w);
#else
  const unsigned char* a = (const unsigned char*)&x;
  for (int n = 0; n < 16; ++n)
    for (int i = 0; i < 4; ++i) sum[n] += a[i] * w[4 * n + i];
  return sum;
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Multiplies ROWS rows of x by a panel. A row of x has WIDE bytes. Calls then(sum of (x - SHIFT) w,
// row, column of the panel) for each result. An instruction of AVX2 multiplies 32 pairs of u8 and
// s8, and adds every two products in 16 bits. The sum can be 2 x 255 x 127, but 16 bits only hold
// numbers up to 32,767. So the function uses a = x - 128 in place of x. It multiplies abs(a) by
// sign(a) w, which is the same product. Then a sum is at most 2 x 128 x 127, which fits.
constexpr int SHIFT = 128;
typedef int Sum8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef short Pairs __attribute__((vector_size(32)));
typedef char Chars __attribute__((vector_size(32), aligned(1), may_alias));
constexpr int INT8_ROWS = 4;
template <int ROWS, int K, int WIDE, class Then>
__forceinline__ void int8_rows(const unsigned char* x, const signed char* w, int width, Then then) {
  constexpr int G = (K + 3) / 4;
  const Pairs ones = Pairs{} + 1;
  for (int first = 0; first < width; first += 16) {
    Sum8 sum[ROWS][2] = {};
    for (int g = 0; g < G; ++g) {
      Chars four[2];
      UNROLL for (int n = 0; n < 2; ++n)
        four[n] = *(const Chars*)(w + g * 256LL + first * 4 + n * 32);
      UNROLL for (int m = 0; m < ROWS; ++m) {
        int bytes;
        __builtin_memcpy(&bytes, x + m * (long long)WIDE + 4 * g, 4);
        const Chars a = (Chars)(Sum8{} + bytes) ^ (char)-128;
        const Chars size = (Chars)__builtin_ia32_psignb256(a, a);  // |a|: 128 fits in u8
        UNROLL for (int n = 0; n < 2; ++n)
          sum[m][n] += (Sum8)__builtin_ia32_pmaddwd256(
              (Pairs)__builtin_ia32_pmaddubsw256(size, __builtin_ia32_psignb256(four[n], a)), ones);
      }
    }
    UNROLL for (int m = 0; m < ROWS; ++m) {
      alignas(32) int out[16];
      UNROLL for (int n = 0; n < 2; ++n) *(Sum8*)(out + 8 * n) = sum[m][n];
      SIMD for (int n = 0; n < min(16, width - first); ++n) then(out[n], m, first + n);
    }
  }
}
#else
constexpr int SHIFT = 0;  // subtracted from x before the product
constexpr int INT8_ROWS = REGISTERS == 32 ? 6 : 2;

// Multiplies ROWS rows of x by a panel. A row of x has WIDE bytes. Calls then(sum, row, column of
// the panel) for each result.
template <int ROWS, int K, int WIDE, class Then>
__forceinline__ void int8_rows(const unsigned char* x, const signed char* w, int width, Then then) {
  constexpr int WAYS = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1, G = (K + 3) / 4;
  Sum sum[WAYS][ROWS][4] = {};
  auto add = [&](int way, int g) {
    UNROLL for (int n = 0; n < 4; ++n) __builtin_prefetch(w + (g + 16LL) * 256 + n * 64);
    UNROLL for (int m = 0; m < ROWS; ++m) {
      int four;
      __builtin_memcpy(&four, x + m * (long long)WIDE + 4 * g, 4);
      UNROLL for (int n = 0; n < 4; ++n)
        sum[way][m][n] = dot4(sum[way][m][n], four, w + (long long)g * 256 + n * 64);
    }
  };
  int g = 0;
  for (; g + WAYS <= G; g += WAYS) UNROLL for (int way = 0; way < WAYS; ++way) add(way, g + way);
  for (; g < G; ++g) add(0, g);
  UNROLL for (int m = 0; m < ROWS; ++m) {
    alignas(64) int out[64];
    UNROLL for (int n = 0; n < 4; ++n) {
      Sum total = sum[0][m][n];
      UNROLL for (int way = 1; way < WAYS; ++way) total += sum[way][m][n];
      *(Sum*)(out + 16 * n) = total;
    }
    SIMD for (int n = 0; n < width; ++n) then(out[n], m, n);
  }
}
#endif

#ifdef AMX
// AMX has eight tile registers. Each has 16 rows of 64 bytes. The instruction TDPBUSD adds the
// matrix product of `a` and `b` to `c`. `c` has 16 x 16 ints, and `a` has 16 x 64 numbers u8. `b`
// holds 64 values of k for 16 columns. A row of `b` has 4 values of k. It is a quarter of a row of
// a panel, so the next row begins 256 bytes later. A configuration sets the number of rows of each
// tile, up to 16. A process must ask Linux for the permission to use these registers. Without the
// permission, their first use ends the process.
#define TILE_ZERO(t) __asm volatile("tilezero %%tmm" #t ::);
#define TILE_LOAD(t, from, apart) \
  __asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((long)(apart)) : "memory")
#define TILE_STORE(to, apart, t) \
  __asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((long)(apart)) : "memory")
#define TILE_DOT4(c, a, b) __asm volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
struct TileShapes {
  unsigned char palette, start, unused[14];
  unsigned short bytes[16];  // the bytes of a row of each tile
  unsigned char rows[16];
};
long ask_system(long call, ...) __asm("syscall");
static const bool tiles_allowed = ask_system(158, 0x1023, 18) == 0;  // arch_prctl: AMX data

// Tiles 0 to 3 hold sums, 4 and 5 hold x, 6 and 7 hold w. Tiles 2, 3 and 5 belong to the second 16
// rows of x.
__forceinline__ void set_tiles(int rows, int below) {
  TileShapes shapes = {1};
  for (int t = 0; t < 8; ++t) {
    shapes.bytes[t] = 64;
    shapes.rows[t] = t >= 6 ? 16 : t == 2 || t == 3 || t == 5 ? below : rows;
  }
  __asm volatile("ldtilecfg %0" ::"m"(shapes));
}

// out = 32 rows of x times 32 columns of the panel. A row of out begins 64 numbers after the row
// before. With 4 tiles of sums, each loaded tile of x or w is used in two products.
template <int WIDE>
__forceinline__ void tiles_2x2(int* out, const unsigned char* x, const signed char* w) {
  TILE_ZERO(0) TILE_ZERO(1) TILE_ZERO(2) TILE_ZERO(3)
  for (int k = 0; k < WIDE; k += 64, x += 64, w += 64 * 64) {
    UNROLL for (int i = 0; i < 16; ++i) {
      __builtin_prefetch(w + 2 * 64 * 64 + i * 256);
      __builtin_prefetch(w + 2 * 64 * 64 + i * 256 + 64);
    }
    TILE_LOAD(6, w, 256);
    TILE_LOAD(4, x, WIDE);
    TILE_DOT4(0, 4, 6);
    TILE_LOAD(5, x + 16 * WIDE, WIDE);
    TILE_DOT4(2, 5, 6);
    TILE_LOAD(7, w + 64, 256);
    TILE_DOT4(1, 4, 7);
    TILE_DOT4(3, 5, 7);
  }
  TILE_STORE(out, 256, 0);
  TILE_STORE(out + 16, 256, 1);
  TILE_STORE(out + 16 * 64, 256, 2);
  TILE_STORE(out + 16 * 64 + 16, 256, 3);
}

// out (16, 64) = up to 16 rows of x times the panel. A product takes 52 cycles, and the next
// product for the same sum must wait for it. So this function computes four sums at a time, as
// tiles_2x2 does.
template <int WIDE>
__forceinline__ void tiles_1x4(int* out, const unsigned char* x, const signed char* w) {
  TILE_ZERO(0) TILE_ZERO(1) TILE_ZERO(2) TILE_ZERO(3)
  for (int k = 0; k < WIDE; k += 64, x += 64, w += 64 * 64) {
    UNROLL for (int i = 0; i < 64; ++i) __builtin_prefetch(w + 2 * 64 * 64 + i * 64);
    TILE_LOAD(4, x, WIDE);
    TILE_LOAD(6, w, 256);
    TILE_DOT4(0, 4, 6);
    TILE_LOAD(7, w + 64, 256);
    TILE_DOT4(1, 4, 7);
    TILE_LOAD(6, w + 128, 256);
    TILE_DOT4(2, 4, 6);
    TILE_LOAD(7, w + 192, 256);
    TILE_DOT4(3, 4, 7);
  }
  TILE_STORE(out, 256, 0);
  TILE_STORE(out + 16, 256, 1);
  TILE_STORE(out + 32, 256, 2);
  TILE_STORE(out + 48, 256, 3);
}

// Multiplies rows of x by a panel. First, soon(row, column) requests the cache lines that `then`
// will write.
template <int WIDE, class Then, class Soon>
__forceinline__ void int8_tiles(const unsigned char* x, const signed char* w, int first, int last,
                                int width, Then then, Soon soon) {
  alignas(64) int out[32 * 64];
  for (int row = first; row < last; row += 32) {
    const int rows = min(16, last - row), below = max(0, min(16, last - row - 16));
    const unsigned char* a = x + row * (long long)WIDE;
    if (row == first || rows + below < 32) set_tiles(rows, below ? below : rows);
    for (int m = 0; m < rows + below; ++m)
      for (int n = 0; n < width; n += 16) soon(row + m, n);
    if (below) tiles_2x2<WIDE>(out, a, w), tiles_2x2<WIDE>(out + 32, a, w + 32 * 4);
    else tiles_1x4<WIDE>(out, a, w);
    for (int m = 0; m < rows + below; ++m)
      SIMD for (int n = 0; n < width; ++n) then(out[m * 64 + n], row + m, n);
  }
  __asm volatile("tilerelease" ::);
}
#endif

// Multiplies rows [first, last) of x (M, WIDE) by panel y of w (N, K). first is a multiple of 96.
// last is a multiple of 96, or M.
template <int M, int N, int K, int WIDE, class Then>
__forceinline__ void int8_linear(float* to, const unsigned char* x, const signed char* w, int first,
                                 int last, int y, Then then) {
  constexpr int ROWS = INT8_ROWS, REST = M % ROWS ? M % ROWS : 1;
  w += (long long)y * 64 * WIDE;
  const int width = N % 64 ? min(64, N - y * 64) : 64;  // usually known to the compiler
#ifdef AMX
  if (tiles_allowed && last - first > FEW)
    return int8_tiles<WIDE>(x, w, first, last, width,
                            [&](int sum, int m, int n) { then(sum, m, y * 64 + n); },
                            [&](int m, int n) {
                              __builtin_prefetch(to + m * (long long)N + y * 64 + n, 1);
                            });
#endif
  int row = first;
  auto from = [&](int sum, int m, int n) { then(sum, row + m, y * 64 + n); };
  for (; row + ROWS <= last; row += ROWS)
    int8_rows<ROWS, K, WIDE>(x + row * (long long)WIDE, w, width, from);
  if (row < last) int8_rows<REST, K, WIDE>(x + row * (long long)WIDE, w, width, from);
}

// Multiplies ROWS rows of floats by a panel of weights with BITS bits. scale: for each GROUP of k,
// 64 numbers, one for each column.
template <int BITS, int ROWS, int K, int GROUP, class Then>
__forceinline__ void weights_rows(const float* x, const signed char* w, const float* scale,
                                  int width, Then then) {
  Wide total[ROWS][4] = {};
  for (int k0 = 0; k0 < K; k0 += GROUP, scale += 64) {
    Wide sum[ROWS][4] = {};
    float every[ROWS] = {};  // sums of x: they correct the 8 that was added to weights of 4 bits
    for (int k = k0; k < min(k0 + GROUP, K); k += 8 / BITS) {
      UNROLL for (int n = 0; n < 4; ++n) {
        const Sum wide = AS_INTS(*(const Bytes*)(w + k * 8LL * BITS + 16 * n));
        const Wide even = __builtin_convertvector(BITS == 8 ? wide : wide & 15, Wide);
        UNROLL for (int m = 0; m < ROWS; ++m) sum[m][n] += x[m * (long long)K + k] * even;
        if (BITS == 4) {
          const Wide odd = __builtin_convertvector(wide >> 4 & 15, Wide);
          UNROLL for (int m = 0; m < ROWS; ++m) sum[m][n] += x[m * (long long)K + k + 1] * odd;
        }
      }
      if (BITS == 4)
        UNROLL for (int m = 0; m < ROWS; ++m)
          every[m] += x[m * (long long)K + k] + x[m * (long long)K + k + 1];
    }
    UNROLL for (int n = 0; n < 4; ++n)
      UNROLL for (int m = 0; m < ROWS; ++m)
        total[m][n] += (sum[m][n] - (BITS == 4 ? 8.0f : 0.0f) * every[m]) *
                       *(const Wide*)(scale + 16 * n);
  }
  UNROLL for (int m = 0; m < ROWS; ++m) {
    alignas(64) float out[64];
    UNROLL for (int n = 0; n < 4; ++n) *(Wide*)(out + 16 * n) = total[m][n];
    SIMD for (int n = 0; n < width; ++n) then(out[n], m, n);
  }
}

// Multiplies rows [first, last) of x (M, K) by panel y of w (N, K).
template <int BITS, int N, int K, int GROUP, class Then>
__forceinline__ void weights_linear(const float* x, const signed char* w, const float* scale,
                                    int first, int last, int y, Then then) {
  constexpr int ROWS = REGISTERS == 32 ? 4 : 1;
  w += (long long)y * 8 * BITS * K;
  scale += (long long)y * 64 * ((K + GROUP - 1) / GROUP);
  const int width = N % 64 ? min(64, N - y * 64) : 64;  // usually known to the compiler
  int row = first;
  auto from = [&](float sum, int m, int n) { then(sum, row + m, y * 64 + n); };
  for (; row + ROWS <= last; row += ROWS)
    weights_rows<BITS, ROWS, K, GROUP>(x + row * (long long)K, w, scale, width, from);
  for (; row < last; ++row)
    weights_rows<BITS, 1, K, GROUP>(x + row * (long long)K, w, scale, width, from);
}

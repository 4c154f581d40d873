// The matrix products of a linear layer on a CPU, with the bias and its gradient on the way.
//
//   C = A B + bias        A (n_rows x depth), B (depth x n_cols), C contiguous; bias (n_cols) or
//                         none
//   sums = A 1            the sum of each row of A: where A = gy^T, the gradient of the bias
//   y = x w^T + b         gx = gy w         gw = gy^T x         each operand with any strides
//
//        B: panels of COLS columns      A core can multiply 64 floats in the time that it loads 16,
//          [ ][ ][ ][ ][ ][ ]           so a result must stay in registers while many products are
//   A  [=]  #                           added to it. `#`, ROWS x COLS of C, is 24 vector registers
//   in [ ]                              on AVX-512: for each k, 2 loads from B, 12 numbers of A,
//   groups                              and 24 multiply-adds.
//   of [ ]
//   ROWS rows       A and B are first copied in the order in which that loop reads them: B by
//                   linear_pack, for all; A by each thread, a block of rows at a time. A panel of B
//                   then stays in L1 for all groups of a block, and a block of A in L2 for all
//                   panels. Both are cut into slabs of DEPTH values of k; C adds up, slab by slab.
//
// Read and written, besides: 2 (n_rows depth + depth n_cols) floats of copies, and C once a slab.
// The order of the additions depends on the shape alone: the same bits with any number of threads.
// This is no GPU code: there cuBLAS does it, and kernels/matmul.cu is the lesson.
//
// Source: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
// Wrapper: minidl/fused/linear.py   Test: tests/fused/test_linear.py
#include "common.cuh"
#ifdef MINIDL_HOST

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
#define UNROLL PRAGMA(GCC unroll 16)

// One vector register of floats, of GCC's and clang's vector extension.
typedef float Vec __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

constexpr int LANES = VEC_BYTES / 4, VECS = 2, COLS = VECS * LANES;  // a panel of B
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int ROWS = 12;  // 24 of 32 registers for the result
#else
constexpr int ROWS = 6;  // 12 of 16
#endif
constexpr int DEPTH = 256;       // a panel: 32 KiB on AVX-512
constexpr int CHUNK = 32;        // values of k that a thread packs at a time
constexpr int BLOCK_ROWS = 48;   // of A: 48 KiB
constexpr int ROWS_AHEAD = 16;        // rows of B that are asked for before they are used

__forceinline__ Vec load(const float* p) { return *(const Vec*)p; }
__forceinline__ void store(float* p, Vec x) { *(Vec*)p = x; }

// B in the order of the product: slabs of DEPTH rows, in a slab panels, in a panel rows of COLS
// numbers, zeros past n_cols. grid (ceil(depth / CHUNK)), block 1.
extern "C" __global__ void linear_pack(float* packed, const float* b, int depth, int n_cols,
                                       long long k_stride, long long col_stride) {
  const int first = blockIdx.x * CHUNK, n = min(CHUNK, depth - first);
  const int slab = first / DEPTH * DEPTH, slab_depth = min(DEPTH, depth - slab);
  const int n_panels = (n_cols + COLS - 1) / COLS;
  packed += (long long)slab * n_panels * COLS + (first - slab) * COLS;
  b += first * k_stride;
  for (int panel = 0; panel < n_panels; ++panel, packed += slab_depth * COLS) {
    const int width = min(COLS, n_cols - panel * COLS);
    const float* from = b + panel * COLS * col_stride;
    if (col_stride == 1 && width == COLS)
      for (int k = 0; k < n; ++k)
        SIMD for (int c = 0; c < COLS; ++c) packed[k * COLS + c] = from[k * k_stride + c];
    else
      for (int c = 0; c < COLS; ++c)
        for (int k = 0; k < n; ++k)
          packed[k * COLS + c] = c < width ? from[k * k_stride + c * col_stride] : 0.0f;
  }
}

// n_rows x n_k of A in groups of ROWS rows: packed[group][k][row in the group], zeros past n_rows.
__noinline__ void pack_rows(float* packed, const float* a, int n_rows, int n_k,
                               long long row_stride, long long k_stride) {
  if (row_stride == 1 && n_rows == BLOCK_ROWS) {  // along the rows: one page of A after the other
    for (int k = 0; k < n_k; ++k, a += k_stride) {
      for (int r = 0; r < BLOCK_ROWS; r += 16) __builtin_prefetch(a + 8 * k_stride + r);
      UNROLL for (int r = 0; r < BLOCK_ROWS; r += ROWS)
        UNROLL for (int m = 0; m < ROWS; ++m) packed[r * DEPTH + k * ROWS + m] = a[r + m];
    }
    return;
  }
  for (int r = 0; r < n_rows; r += ROWS, packed += ROWS * DEPTH)
    for (int m = 0; m < ROWS; ++m) {
      const float* from = a + (r + m) * row_stride;
      if (r + m < n_rows) for (int k = 0; k < n_k; ++k) packed[k * ROWS + m] = from[k * k_stride];
      else for (int k = 0; k < n_k; ++k) packed[k * ROWS + m] = 0;
    }
}

// c (n_rows x n_cols at most ROWS x COLS, rows c_row apart) = or += a b + bias, over n_k.
// A function of its own, as pack_rows: inside its caller it was no faster, and the compiler took
// twice as long.
__noinline__ void product(float* c, int c_row, const float* a, const float* b, int n_k,
                             const float* bias, bool add, int n_rows, int n_cols) {
  Vec sum[ROWS][VECS];
  UNROLL for (int m = 0; m < ROWS; ++m)
    UNROLL for (int n = 0; n < VECS; ++n) sum[m][n] = Vec{};
  for (int k = 0; k < n_k; ++k) {
    Vec bk[VECS];
    UNROLL for (int n = 0; n < VECS; ++n) {
      bk[n] = load(b + k * COLS + n * LANES);
      __builtin_prefetch(b + (k + ROWS_AHEAD) * COLS + n * LANES);  // a hint: any address will do
    }
    UNROLL for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) sum[m][n] += a[k * ROWS + m] * bk[n];
  }
  if (n_rows >= ROWS && n_cols >= COLS) {
    UNROLL for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) {
        float* at = c + (long long)m * c_row + n * LANES;
        if (add) sum[m][n] += load(at);
        else if (bias) sum[m][n] += load(bias + n * LANES);
        store(at, sum[m][n]);
      }
  } else {  // the edge: through a tile, the same sums
    alignas(64) float tile[ROWS * COLS];
    UNROLL for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) store(tile + m * COLS + n * LANES, sum[m][n]);
    for (int m = 0; m < min(n_rows, ROWS); ++m)
      for (int n = 0; n < min(n_cols, COLS); ++n) {
        float* at = c + (long long)m * c_row + n;
        *at = tile[m * COLS + n] + (add ? *at : bias ? bias[n] : 0.0f);
      }
  }
}

// C = A B + bias, from B packed. grid (ceil(n_rows / BLOCK_ROWS), ceil(n_cols / block_cols)), block
// 1: a thread per block of C; block_cols, a multiple of COLS, cuts C further where it has few rows.
extern "C" __global__ void linear_product(
    float* c, float* sums, const float* a, const float* packed, const float* bias, int n_rows,
    int n_cols, int depth, long long row_stride, long long k_stride, int block_cols, int has_bias,
    int want_sums) {
  const int row = blockIdx.x * BLOCK_ROWS, rows = min(BLOCK_ROWS, n_rows - row);
  const int first = blockIdx.y * block_cols, last = min(first + block_cols, n_cols);
  const int padded = (n_cols + COLS - 1) / COLS * COLS;
  alignas(64) float at[BLOCK_ROWS * DEPTH], total[BLOCK_ROWS] = {};
  for (int k0 = 0; k0 < depth; k0 += DEPTH) {
    const int n_k = min(DEPTH, depth - k0);
    pack_rows(at, a + row * row_stride + k0 * k_stride, rows, n_k, row_stride, k_stride);
    for (int col = first; col < last; col += COLS)
      for (int r = 0; r < rows; r += ROWS)
        product(c + (long long)(row + r) * n_cols + col, n_cols, at + r * DEPTH,
                packed + (long long)k0 * padded + (long long)col * n_k, n_k,
                has_bias ? bias + col : nullptr, k0 > 0, rows - r, n_cols - col);
    if (want_sums && first == 0)
      for (int r = 0; r < rows; r += ROWS) {
        float slab[ROWS] = {};  // each slab by itself, then the slabs: smaller errors
        for (int k = 0; k < n_k; ++k)
          UNROLL for (int m = 0; m < ROWS; ++m) slab[m] += at[r * DEPTH + k * ROWS + m];
        for (int m = 0; m < ROWS; ++m) total[r + m] += slab[m];
      }
  }
  if (want_sums && first == 0)
    for (int i = 0; i < rows; ++i) sums[row + i] = total[i];
}
#endif

// The matrix products of a linear layer on a CPU. They also add the bias, or compute its gradient.
//
//   C = A B + bias        A (n_rows x depth), B (depth x n_cols), C contiguous. bias: (n_cols), or
//                         null
//   sums                  the sum of each row of A. If A = gy^T, it is the gradient of the bias
//   y = x w^T + b         gx = gy w         gw = gy^T x         each matrix may have any strides
//
//      B: panels of COLS columns      In the time in which a core loads 16 floats, it can multiply
//        [    ][    ][    ]           64 floats. So a sum must stay in a register while many
//   A    [####]                       products are added to it. The block `#`, ROWS x COLS numbers
//   in   [####]                       of C, takes 24 vector registers on AVX-512. Each k needs 4
//   groups                            vectors of B, 6 numbers of A, and 24 multiply-adds.
//   of
//   ROWS rows
//
// First, B is copied into the order in which the product reads it. If the numbers of a row of A are
// neighbours, A is not copied. A = gy^T is copied, because the next number of its row may be a page
// away. A and B are cut into slabs of DEPTH values of k. A thread computes a block of C, slab by
// slab. Its rows of A in a slab (at most 384 KiB) stay in the L2 cache for all panels of B. A panel
// of B stays in L2 for all groups of A.
//
// A copy reads and writes each float once. It moves 2 depth n_cols floats for B, and 2 n_rows depth
// floats for A. C is read and written once for each slab. The order of the additions depends only
// on the shape, so any number of threads gives the same bits. This code does not run on a GPU. On a
// GPU cuBLAS computes the product, and ../matmul.cu is the lesson.
//
// Source: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
// Wrapper: minidl/ops/linear.py   Test: tests/ops/test_linear_kernel.py
#include "vector.cuh"

// ROWS is small, because a set of the L1 cache holds only 8 lines. If the rows of A lie a multiple
// of 4 KiB apart and are not copied, a product needs ROWS lines of one set.
constexpr int ROWS = 6;
constexpr int VECS = REGISTERS == 32 ? 4 : 2;  // 24 of 32 registers hold the result, or 12 of 16
constexpr int COLS = VECS * LANES;             // a panel of B
constexpr int DEPTH = 512;      // so a panel has 128 KiB on AVX-512, a group of A 12 KiB
constexpr int CHUNK = 32;       // values of k that a thread packs at a time. It divides DEPTH
constexpr int STRIP = 8 * ROWS;  // rows of A that a thread packs at a time. A k has 3 cache lines
constexpr int ROWS_AHEAD = 16;  // rows of B between a request to the cache and the use

// Copies B into the order of the product. A slab of DEPTH rows of B is cut into panels. A panel has
// rows of COLS numbers, with zeros after column n_cols.
// grid (ceil(depth / CHUNK)), block 1.
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

// Copies A into the order of the product. A slab of A is cut into groups of ROWS rows. A group has
// ROWS numbers for each k, with zeros after row n_rows. This kernel also writes sums[chunk][row],
// the sum of a row over the values of k in a chunk.
// grid (ceil(depth / CHUNK)), block 1.
extern "C" __global__ void linear_pack_rows(float* packed, float* sums, const float* a, int n_rows,
                                            int depth, long long row_stride, long long k_stride) {
  const int first = blockIdx.x * CHUNK, n = min(CHUNK, depth - first);
  const int slab = first / DEPTH * DEPTH, slab_depth = min(DEPTH, depth - slab);
  const int n_groups = (n_rows + ROWS - 1) / ROWS;
  packed += (long long)slab * n_groups * ROWS + (first - slab) * ROWS;
  sums += (long long)blockIdx.x * n_rows;
  a += first * k_stride;
  for (int row = 0; row < n_rows; row += STRIP) {
    const int rows = min(STRIP, n_rows - row);
    const float* from = a + row * row_stride;
    float* to = packed + (long long)row * slab_depth;
    if (row_stride == 1 && rows == STRIP) {
      float sum[STRIP] = {};
      for (int k = 0; k < n; ++k, from += k_stride, to += ROWS) {
        // fetches the next strip into L2, because L1 may have no room for CHUNK lines that lie a
        // page apart
        for (int r = 0; r < STRIP; r += 16) __builtin_prefetch(from + STRIP + r, 0, 2);
        float x[STRIP];  // kept in registers, because a store to `to` may change `from`
        SIMD for (int r = 0; r < STRIP; ++r) sum[r] += x[r] = from[r];
        UNROLL for (int r = 0; r < STRIP; r += ROWS)
          UNROLL for (int m = 0; m < ROWS; ++m) to[r * slab_depth + m] = x[r + m];
      }
      SIMD for (int r = 0; r < STRIP; ++r) sums[row + r] = sum[r];
    } else {
      for (int r = 0; r < (rows + ROWS - 1) / ROWS * ROWS; ++r) {
        float sum = 0;
        for (int k = 0; k < n; ++k) {
          const float x = r < rows ? from[r * row_stride + k * k_stride] : 0.0f;
          to[r / ROWS * ROWS * slab_depth + k * ROWS + r % ROWS] = x;
          sum += x;
        }
        if (r < rows) sums[row + r] = sum;
      }
    }
  }
}

// c = a b + bias, or c += a b, over n_k values of k. c has at most ROWS x COLS numbers. A row of c
// begins c_row numbers after the row before. The function is not inlined, because inlining did not
// make it faster and doubled the compiler's time.
__noinline__ void product(float* c, int c_row, const float* a, long long row_stride,
                          long long k_stride, const float* b, int n_k, const float* bias, bool add,
                          int n_rows, int n_cols) {
  Vec sum[ROWS][VECS];
  const float* row[ROWS];  // after the last row, repeat it: this result is not stored
  UNROLL for (int m = 0; m < ROWS; ++m) {
    row[m] = a + min(m, n_rows - 1) * row_stride;
    UNROLL for (int n = 0; n < VECS; ++n) {
      sum[m][n] = Vec{};
      __builtin_prefetch(c + (long long)m * c_row + n * LANES, 1);  // a hint: any address is legal
    }
  }
  for (int k = 0; k < n_k; ++k, b += COLS) {
    Vec bk[VECS];
    UNROLL for (int n = 0; n < VECS; ++n) {
      bk[n] = load(b + n * LANES);
      IN_REGISTER(bk[n]);
      __builtin_prefetch(b + ROWS_AHEAD * COLS + n * LANES);
    }
    UNROLL for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) sum[m][n] += row[m][k * k_stride] * bk[n];
  }
  if (n_rows >= ROWS && n_cols >= COLS) {
    UNROLL for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) {
        float* at = c + (long long)m * c_row + n * LANES;
        if (add) sum[m][n] += load(at);
        else if (bias) sum[m][n] += load(bias + n * LANES);
        store(at, sum[m][n]);
      }
  } else {  // at an edge, the sums go through a tile in memory
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

// C = A B + bias. B is packed. A is packed if is_packed is 1. If not, the elements of a row of A
// are neighbours, and the next row begins row_stride elements later. A thread computes a block of
// C. block_rows is a multiple of ROWS, and block_cols is a multiple of COLS.
// grid (ceil(n_rows / block_rows), ceil(n_cols / block_cols)), block 1.
extern "C" __global__ void linear_product(
    float* c, const float* a, const float* b, const float* bias, int n_rows, int n_cols, int depth,
    long long row_stride, int is_packed, int block_rows, int block_cols) {
  const int first_row = blockIdx.x * block_rows, last_row = min(first_row + block_rows, n_rows);
  const int first_col = blockIdx.y * block_cols, last_col = min(first_col + block_cols, n_cols);
  const long long rows = (n_rows + ROWS - 1) / ROWS * ROWS;  // with the padding of zeros
  const long long cols = (n_cols + COLS - 1) / COLS * COLS;
  for (int k0 = 0; k0 < depth; k0 += DEPTH) {
    const int n_k = min(DEPTH, depth - k0);
    for (int col = first_col; col < last_col; col += COLS)
      for (int row = first_row; row < last_row; row += ROWS)
        product(c + (long long)row * n_cols + col, n_cols,
                is_packed ? a + k0 * rows + (long long)row * n_k : a + row * row_stride + k0,
                is_packed ? 1 : row_stride, is_packed ? ROWS : 1,
                b + k0 * cols + (long long)col * n_k, n_k, bias ? bias + col : nullptr, k0 > 0,
                n_rows - row, n_cols - col);
  }
}

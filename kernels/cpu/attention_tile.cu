// Attention on a CPU. A thread computes some tiles of queries. It uses vector registers where a GPU
// uses a warp.
//
//   S = scale q k^T    P = softmax(S)    o = P v    lse = log(sum(exp(S)))
//   gradients: as in attention_backward.cu
//
//   q (B, H, L, E)   k, v (B, H, S, E)   The last stride is 1, the others are parameters
//   o (B, L, H, E)   lse (B, H, L) float
//   Forward reads q once, and k and v once for every GROUP tiles of queries. It writes o and lse.
//   The tiles of S and P stay in the L1 cache.
//
//            keys ->                     Most of the time goes into products of small matrices.
//   queries  [ tile ][ tile ][ tile ]    `product` keeps a few rows of the result in 16 registers.
//            (online softmax)            In each step it multiplies one number of the left matrix
//                                        by a row of the right matrix, and adds this to a row of
//                                        the result. On a core with 16 lanes and two multiply-adds
//                                        a cycle, this reaches 90% of the peak.
//
// ../attention.cu and ../attention_backward.cu are for a GPU. This file does not run on a GPU,
// because a GPU thread has no vector registers and no L1 cache of its own. The compiler's option
// -DE= sets E, so the compiler knows the length of every loop over E.
//
// Source: Dao et al. (2022); Goto & van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008).
// Wrapper: minidl/ops/attention_kernel.py   Test: tests/ops/test_attention_kernel.py,
//                                           test_attention_mask.py
#include "attention.cuh"
#include "vector.cuh"

typedef int IntVec __attribute__((vector_size(VEC_BYTES)));

constexpr int MAX_VECS = REGISTERS == 32 ? 4 : 2;  // vectors in a row of a result. It has 16 or 8
constexpr int QUERIES = 64, KEYS = 64;  // a tile. Its scores take 16 KiB, half of an L1
// The number of tiles that a thread computes together. In forward these are tiles of queries, and
// each tile of keys is read once for all of them. In backward these are tiles of keys, and each
// tile of queries is read once.
constexpr int GROUP = E > 64 ? 2 : 4;
constexpr int WIDTH = (E + LANES - 1) / LANES * LANES;  // E, rounded up to whole registers

__forceinline__ Vec all(float x) { return x - Vec{}; }
__forceinline__ Vec larger(Vec a, Vec b) { return a < b ? b : a; }

// Returns e^x for x <= 0, by the method of expf in host/float_math.h. If x < -87.7, the exponent
// field of 2^n is 0, so the result is 0. So a masked score, -inf, gives exactly 0.
__forceinline__ Vec exp_nonpositive(Vec x) {
  x = x < -88.0f ? all(-88.0f) : x;  // NaN stays NaN
  // adding 1.5 * 2^23 rounds x / log 2 to the integer n
  Vec t = x * 1.442695041f + 12582912.0f, n = t - 12582912.0f;
  Vec r = x - n * 0.693145751953125f - n * 1.42860682030941723e-6f;
  Vec p = r * 0.001381446490995586f + 0.008368780836462975f;
  p = p * r + 0.04166839271783829f;
  p = p * r + 0.1666651964187622f;
  p = p * r + 0.4999999403953552f;
  p = p * r * r + r + 1.0f;
  return p * (Vec)(((IntVec)t - (0x4b400000 - 127)) << 23);
}

// C = keep C + A B, for ROWS x VECS registers of C. A[m][k] is at a + m a_row + k a_col. Rows of B
// and C are contiguous. keep: a factor for each row of C. If keep is null, C = A B.
template <int ROWS, int VECS>
__forceinline__ void product_block(float* c, int c_row, const float* keep, const float* a,
                                   int a_row, int a_col, const float* b, int b_row, int n_k) {
  Vec sum[ROWS][VECS];
  UNROLL for (int m = 0; m < ROWS; ++m)
    UNROLL for (int n = 0; n < VECS; ++n)
      sum[m][n] = keep ? keep[m] * load(c + m * c_row + n * LANES) : Vec{};
  for (int k = 0; k < n_k; ++k) {
    Vec bk[VECS];
    UNROLL for (int n = 0; n < VECS; ++n) {
      bk[n] = load(b + k * b_row + n * LANES);
      IN_REGISTER(bk[n]);
    }
    UNROLL for (int m = 0; m < ROWS; ++m)
      UNROLL for (int n = 0; n < VECS; ++n) sum[m][n] += a[m * a_row + k * a_col] * bk[n];
  }
  UNROLL for (int m = 0; m < ROWS; ++m)
    UNROLL for (int n = 0; n < VECS; ++n) store(c + m * c_row + n * LANES, sum[m][n]);
}

// On the diagonal of a causal S, half of a tile is masked. Part tells which part of a product C = A
// B must be computed there. LEFT_OF_C: only elements left of C's diagonal are needed. LEFT_OF_A:
// only elements left of A's diagonal are not 0. RIGHT_OF_C and RIGHT_OF_A: the same, right of the
// diagonal.
enum Part { ALL, LEFT_OF_C, RIGHT_OF_C, LEFT_OF_A, RIGHT_OF_A };

// C (64 x N) = keep C + A (64 x n_k) B (n_k x N). C and B have rows of N floats. The function is
// not inlined, because inlined copies were not faster and took twice as long to compile.
template <int N, int A_ROW, int A_COL>
__noinline__ void product(float* c, const float* keep, const float* a, const float* b, int n_k,
                          Part part = ALL) {
  constexpr int VECS = N / LANES % MAX_VECS == 0 ? MAX_VECS : N / LANES % 2 == 0 ? 2 : 1;
  constexpr int ROWS = 4 * MAX_VECS / VECS > 8 ? 8 : 4 * MAX_VECS / VECS;
  for (int n = 0; n < N; n += VECS * LANES)
    for (int m = 0; m < 64; m += ROWS) {
      if (part == LEFT_OF_C && n >= m + ROWS) continue;
      if (part == RIGHT_OF_C && n + VECS * LANES <= m) continue;
      const int first = part == RIGHT_OF_A ? m : 0, last = part == LEFT_OF_A ? m + ROWS : n_k;
      product_block<ROWS, VECS>(c + m * N + n, N, keep ? keep + m : nullptr,
                                a + m * A_ROW + first * A_COL, A_ROW, A_COL, b + first * N + n, N,
                                last - first);
    }
}

// Copies 64 rows of E elements into a tile, and multiplies them by `factor`. Rows after n_rows and
// columns after E become 0. The rows of a head lie far apart in memory, so the processor does not
// prefetch them. The function requests the rows of the next tile for the cache.
__noinline__ void load_tile(float* tile, const T* x, long long row, int n_rows, float factor) {
  for (int i = 0; i < 64; ++i) {
    for (int e = 0; e < E; e += 64 / (int)sizeof(T))
      __builtin_prefetch(x + (i + 64) * row + e);  // a hint: any address is allowed
    const int n = i < n_rows ? E : 0;
    if (n) SIMD for (int e = 0; e < E; ++e) tile[i * WIDTH + e] = to_float(x[i * row + e]) * factor;
    for (int e = n; e < WIDTH; ++e) tile[i * WIDTH + e] = 0;
  }
}

// Does the same as load_tile, but transposes the tile: tile[e][i]. The function first makes a
// contiguous copy of the rows. Without the copy, rows that lie far apart, as in a projection (B, S,
// 3, H, E), use only a few sets of the L1 cache. Then reading one column of x evicts the cache
// lines that the next column needs.
__noinline__ void load_transposed(float* tile, const T* x, long long row, int n_rows,
                                  float factor) {
  alignas(64) float rows[64 * WIDTH];
  load_tile(rows, x, row, n_rows, factor);
  for (int e = 0; e < E; ++e)
    for (int i = 0; i < 64; ++i) tile[e * 64 + i] = rows[i * WIDTH + e];
}

// Adds one tile of scores `s` to the softmax. `top` and `total` hold the maximum and the sum of
// each query so far. The function replaces s by exp(s - top), and writes shrink = exp(old top - new
// top). The caller must multiply the earlier sums of o by `shrink`.
__forceinline__ void online_softmax(float* s, float* top, float* total, float* shrink) {
  // The loop computes N vectors at a time. They do not depend on each other, so the processor can
  // overlap their instructions.
  constexpr int N = QUERIES / LANES < 8 ? QUERIES / LANES : 8;
  for (int i = 0; i < QUERIES; i += N * LANES) {
    Vec m[N], l[N];
    UNROLL for (int n = 0; n < N; ++n) m[n] = load(top + i + n * LANES);
    for (int j = 0; j < KEYS; ++j)
      UNROLL for (int n = 0; n < N; ++n) m[n] = larger(m[n], load(s + j * QUERIES + i + n * LANES));
    UNROLL for (int n = 0; n < N; ++n) {
      Vec f = exp_nonpositive(load(top + i + n * LANES) - m[n]);
      store(shrink + i + n * LANES, f);
      store(top + i + n * LANES, m[n]);
      l[n] = f * load(total + i + n * LANES);
    }
    for (int j = 0; j < KEYS; ++j)
      UNROLL for (int n = 0; n < N; ++n) {
        float* at = s + j * QUERIES + i + n * LANES;
        Vec p = exp_nonpositive(load(at) - m[n]);
        store(at, p);
        l[n] += p;
      }
    UNROLL for (int n = 0; n < N; ++n) store(total + i + n * LANES, l[n]);
  }
}

// Returns the dropout factors (0 or keep_scale) of query i for KEYS keys, from key j0 on. They lie
// in `drawn`. One call of philox makes eight draws, so the first call may begin at a key before j0.
__forceinline__ const float* kept_row(float* drawn, const Pairs& pair, int i, int j0) {
  const unsigned long long start = pair.draw(i, j0);
  for (int b = 0; b < DRAWN(KEYS); ++b) {
    unsigned int draws[8];
    philox(pair.counter + start / 8 + b, pair.seed, pair.stream, draws);
    SIMD for (int d = 0; d < 8; ++d)
      drawn[8 * b + d] = draws[d] >= pair.threshold ? pair.keep_scale : 0.0f;
  }
  return drawn + start % 8;
}

// Forward. grid (ceil(L / (64 GROUP)), H, B), block 1. A thread computes GROUP tiles of queries.
extern "C" __global__ void attention_tile(
    T* o, float* lse, const T* q, const T* k, const T* v, SHAPE) {
  const int first = blockIdx.x * GROUP * QUERIES, head = blockIdx.y, n_heads = gridDim.y;
  const int n_rows = min(GROUP * QUERIES, n_queries - first);
  const long long batch = blockIdx.z;
  q += batch * q_batch + head * q_head + first * q_row;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  o += ((batch * n_queries + first) * n_heads + head) * E;
  lse += (batch * n_heads + head) * n_queries + first;

  alignas(64) float kt[KEYS * WIDTH], vt[KEYS * WIDTH], s[KEYS * QUERIES];
  alignas(64) float qt[GROUP * E * QUERIES], ot[GROUP * QUERIES * WIDTH];
  alignas(64) float top[GROUP * QUERIES], total[GROUP * QUERIES], shrink[QUERIES];
  alignas(64) float drawn[8 * DRAWN(KEYS)];
  const Pairs pair = PAIRS(batch, head);
  for (int i0 = 0; i0 < n_rows; i0 += QUERIES)
    load_transposed(qt + i0 * E, q + i0 * q_row, q_row, n_rows - i0, scale);
  for (int i = 0; i < GROUP * QUERIES; ++i) top[i] = LOWEST, total[i] = 0;
  for (int i = 0; i < GROUP * QUERIES * WIDTH; ++i) ot[i] = 0;

  const int end = causal ? min(first + n_rows, n_keys) : n_keys;  // no query may use later keys
  for (int j0 = 0; j0 < end; j0 += KEYS) {
    load_tile(kt, k + j0 * k_row, k_row, n_keys - j0, 1);
    load_tile(vt, v + j0 * v_row, v_row, n_keys - j0, 1);
    for (int i0 = causal ? max(0, (j0 - first) / QUERIES * QUERIES) : 0; i0 < n_rows;
      i0 += QUERIES) {
      const bool diagonal = causal && j0 == first + i0;
      // s[j][i]: each lane holds one query, so the softmax of a query is a loop over j, without
      // shuffles
      product<QUERIES, WIDTH, 1>(s, nullptr, kt, qt + i0 * E, E, diagonal ? RIGHT_OF_C : ALL);
      const int n = min(QUERIES, n_rows - i0);
      if (MASKED)
        for (int j = 0; j < min(KEYS, n_keys - j0); ++j)
          for (int i = 0; i < n; ++i)
            s[j * QUERIES + i] = pair.score(s[j * QUERIES + i], first + i0 + i, j0 + j);
      if (j0 + KEYS > n_keys || (causal && j0 + KEYS > first + i0 + 1))
        for (int j = 0; j < KEYS; ++j) {  // hides key j from earlier queries, or from all queries
          const int hidden = j0 + j >= n_keys ? QUERIES : causal ? j0 + j - first - i0 : 0;
          SIMD for (int i = 0; i < min(hidden, QUERIES); ++i) s[j * QUERIES + i] = -INFINITY;
        }
      online_softmax(s, top + i0, total + i0, shrink);
      for (int i = 0; DROPOUT && i < n; ++i) {
        const float* kept = kept_row(drawn, pair, first + i0 + i, j0);
        for (int j = 0; j < KEYS; ++j) s[j * QUERIES + i] *= kept[j];
      }
      product<WIDTH, 1, QUERIES>(ot + i0 * WIDTH, shrink, s, vt, KEYS,
                                 diagonal ? LEFT_OF_A : ALL);
    }
  }
  for (int i = 0; i < n_rows; ++i) {
    const float f = inverse(total[i]);
    SIMD for (int e = 0; e < E; ++e)
      o[(long long)i * n_heads * E + e] = from_float<T>(ot[i * WIDTH + e] * f);
    lse[i] = log_sum(top[i], total[i]);
  }
}

// Backward. `dots` holds D = sum_e go o (attention_tile_row_dot). The kernel computes P from lse,
// gP = go v^T, gS = P (gP - D) and
//
//   gv = P^T go     gk = scale gS^T q     gq = scale gS k
//
// These are five matrix products. Forward has two.
// grid (parts, H, B), block 1. A group has GROUP tiles of keys. The thread of part p computes the
// groups p, p + parts, ... Only this thread sums gk and gv of these keys, in a fixed order. So
// there are no atomics, and every run gives the same bits. gq is a sum over all keys. So each
// thread writes its own partial sum, and gq has the shape (parts, B, L, H, E) float. For long texts
// this is a large array, so the number of parts has a fixed maximum. -DGRAD_ROWS=3: gk and gv are
// thirds of one array (B, S, 3, H, E), the gradient of a projection.
#ifndef GRAD_ROWS
#define GRAD_ROWS 1
#endif
extern "C" __global__ void attention_tile_backward(
    float* gq, T* gk, T* gv, const T* go, const float* lse, const float* dots,
    const T* q, const T* k, const T* v, SHAPE) {
  const int head = blockIdx.y, n_heads = gridDim.y;
  const long long batch = blockIdx.z, row = (long long)n_heads * E;  // length of go's and gq's rows
  const long long grad_row = GRAD_ROWS * row;                        // length of gk's and gv's rows
  q += batch * q_batch + head * q_head;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  go += (batch * n_queries * n_heads + head) * E;
  gq += ((blockIdx.x * gridDim.z + batch) * n_queries * n_heads + head) * E;
  gk += batch * n_keys * grad_row + head * E;
  gv += batch * n_keys * grad_row + head * E;
  lse += (batch * n_heads + head) * n_queries;
  dots += batch * n_queries * n_heads + head;

  constexpr int TILE = 64 * WIDTH, ROWS = GROUP * KEYS;
  alignas(64) float kt[GROUP * TILE], k_across[GROUP * E * KEYS], v_across[GROUP * E * KEYS];
  alignas(64) float gkt[GROUP * TILE], gvt[GROUP * TILE], qt[TILE], got[TILE], gqt[TILE];
  alignas(64) float p[QUERIES * KEYS], g[QUERIES * KEYS], one[64], drawn[8 * DRAWN(KEYS)];
  const Pairs pair = PAIRS(batch, head);
  for (int i = 0; i < 64; ++i) one[i] = 1;

  for (int first = blockIdx.x * ROWS; first < n_keys; first += gridDim.x * ROWS) {
    const int n_rows = min(ROWS, n_keys - first);
    const bool is_first = first == blockIdx.x * ROWS;  // if false, gq already has sums
    for (int j0 = 0; j0 < n_rows; j0 += KEYS) {
      const T *kj = k + (first + j0) * k_row, *vj = v + (first + j0) * v_row;
      load_tile(kt + j0 * WIDTH, kj, k_row, n_rows - j0, scale);
      load_transposed(k_across + j0 * E, kj, k_row, n_rows - j0, 1);
      load_transposed(v_across + j0 * E, vj, v_row, n_rows - j0, 1);
    }
    for (int i = 0; i < GROUP * TILE; ++i) gkt[i] = gvt[i] = 0;

    for (int i0 = 0; i0 < n_queries; i0 += QUERIES) {
      const int n = min(QUERIES, n_queries - i0);
      // causal: these queries may use only the keys before `end`
      const int end = causal ? min(n_rows, i0 + n - first) : n_rows;
      if (end <= 0 && !is_first) continue;
      for (int i = 0; i < TILE; ++i) gqt[i] = 0;
      if (end > 0) {
        load_tile(qt, q + i0 * q_row, q_row, n, scale);
        load_tile(got, go + i0 * row, row, n, 1);
      }
      for (int j0 = 0; j0 < end; j0 += KEYS) {
        const bool diagonal = causal && i0 == first + j0;
        const Part seen_scores = diagonal ? LEFT_OF_C : ALL;
        product<KEYS, WIDTH, 1>(p, nullptr, qt, k_across + j0 * E, E, seen_scores);
        product<KEYS, WIDTH, 1>(g, nullptr, got, v_across + j0 * E, E, seen_scores);
        for (int i = 0; i < QUERIES; ++i) {
          const int seen = i >= n ? 0 : causal
              ? min(n_rows - j0, i0 + i - first - j0 + 1) : n_rows - j0;
          for (int j = 0; MASKED && j < min(KEYS, seen); ++j)
            p[i * KEYS + j] = pair.score(p[i * KEYS + j], i0 + i, first + j0 + j);
          for (int j = max(0, seen); j < KEYS; ++j)
            p[i * KEYS + j] = -INFINITY, g[i * KEYS + j] = 0;
          const float* kept = DROPOUT && i < n ? kept_row(drawn, pair, i0 + i, first + j0) : one;
          const Vec l = all(i < n ? lse[i0 + i] : 0);
          const Vec d = all(i < n ? dots[(long long)(i0 + i) * n_heads] : 0);
          UNROLL for (int j = 0; j < KEYS; j += LANES) {
            Vec pj = exp_nonpositive(load(p + i * KEYS + j) - l);
            Vec gj = load(g + i * KEYS + j);
            store(p + i * KEYS + j, DROPOUT ? pj * load(kept + j) : pj);
            store(g + i * KEYS + j, pj * ((DROPOUT ? gj * load(kept + j) : gj) - d));
          }
        }
        const Part later = diagonal ? RIGHT_OF_A : ALL;
        product<WIDTH, 1, KEYS>(gvt + j0 * WIDTH, one, p, got, QUERIES, later);
        product<WIDTH, 1, KEYS>(gkt + j0 * WIDTH, one, g, qt, QUERIES, later);
        product<WIDTH, KEYS, 1>(gqt, one, g, kt + j0 * WIDTH, KEYS, diagonal ? LEFT_OF_A : ALL);
      }
      for (int i = 0; i < n; ++i) {
        float* sum = gq + (i0 + i) * row;
        if (is_first) SIMD for (int e = 0; e < E; ++e) sum[e] = gqt[i * WIDTH + e];
        else SIMD for (int e = 0; e < E; ++e) sum[e] += gqt[i * WIDTH + e];
      }
    }
    for (int j = 0; j < n_rows; ++j)
      SIMD for (int e = 0; e < E; ++e) {
        gk[(first + j) * grad_row + e] = from_float<T>(gkt[j * WIDTH + e]);
        gv[(first + j) * grad_row + e] = from_float<T>(gvt[j * WIDTH + e]);
      }
  }
}

// out[i] = sum_e a[i][e] b[i][e], as attention_row_dot of ../attention_backward.cu.
extern "C" __global__ void attention_tile_row_dot(float* out, const T* a, const T* b, int n_rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n_rows) {  // guard
    const T *ar = a + (long long)i * E, *br = b + (long long)i * E;
    float sum = 0;
    SIMD_SUM(sum) for (int e = 0; e < E; ++e) sum += to_float(ar[e]) * to_float(br[e]);
    out[i] = sum;
  }
}

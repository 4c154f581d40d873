// Attention on tensor cores, forward and backward, in half. It is the last rung of the ladders in
// attention.cu and attention_backward.cu. attention_backward.cu has the formulas of the gradients,
// attention.cuh has the shapes, strides, mask, dropout and grid. tensor_core.cuh explains
// fragments.
//
//   S = scale q k^T    P = softmax(S)    o = P v
//
//            64 keys ->            A block takes 64 rows, and each of its 4 warps takes 16 rows.
//   warp 0  [ S = q k^T ]          Tiles of 64 keys and values are in shared memory, as halves.
//   warp 1  [           ]          A warp's S is a row of `c` fragments. Rounded to half, they have
//   warp 2  [           ]          the layout of the `a` fragments of P v. So P never leaves the
//   warp 3  [           ]          registers. 4 lanes share a row, with 16 numbers in each lane.
//
// Forward reads q once. It reads k and v once for every 64 queries. So for each query row, 2 S E /
// 64 elements of k and v are read. P is rounded to half, with a relative error of at most 2^-11. In
// backward P (gP - D) is also rounded to half. Sums, softmax and lse are in float.
//
// Expected share of the tensor cores' peak: 40 to 50% in forward with E = 64, and 40% in backward.
// It is computed, not measured. An A100's SM has four quarters, and a warp runs in one of them. For
// a tile of 64 keys a warp needs
//   64 mma instructions of 2048 multiply-adds             512 cycles
//   32 ldmatrix instructions of 512 bytes                 512 cycles, at 32 bytes a cycle
//   the exponentials of 16 x 64 scores                    256 cycles, at 4 a cycle
//   the rest of the softmax                               256 cycles
// Two or three blocks share an SM, so these times overlap. attention_warp, which does not use
// tensor cores, reaches 3% of this peak. Forward has 2 matrix products. Backward has 7 in its two
// kernels, because both compute P and gP. But backward does not wait for a softmax.
//
// Source: Dao, "FlashAttention-2" (2023), for P in registers and rows split over warps.
// Wrapper: minidl/ops/attention_kernel.py   Test: tests/ops/test_attention_kernel.py,
//                                           test_attention_mask.py
#include "attention.cuh"
#include "tensor_core.cuh"

#define SIDE 64                           // rows of a block, and of a tile; 16 rows a warp
#define WIDTH ((E + 15) / 16 * 16)        // E, padded with zeros to whole fragments
#define STEPS (WIDTH / 16)
#define PITCH (WIDTH + 8)                 // ldmatrix reads 8 rows of 16 bytes from different banks
#define WHOLE 0xffffffffu

// The block's threads copy N rows of x to shared memory. Rows after n_rows and columns after E
// become 0.
template <int N> __device__ __forceinline__ void load_tile(__half* tile, const __half* x,
                                                           long long row, int n_rows) {
  const bool whole = packs(x, row);
  for (int at = threadIdx.x; at < N * (WIDTH / 8); at += blockDim.x) {
    const int i = at / (WIDTH / 8), e = at % (WIDTH / 8) * 8;
    *(uint4*)(tile + i * PITCH + e) =
        load_pack(x + i * row + e, i < n_rows ? E - e : 0, whole).all;
  }
}

// Loads a warp's 16 rows of a tile as fragments, for the left matrix of a product.
__device__ __forceinline__ void load_own(unsigned int (*a)[4], const __half* tile) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 0; step < STEPS; ++step)
    load_a(a[step], tile + warp * 16 * PITCH + 16 * step, PITCH);
}

// `s` (16 x 16) = `a` times the transpose of 16 rows of a tile. If HELD is true, `a` is in
// registers. If not, the function loads `a` from `own`, the warp's rows of another tile.
template <bool HELD = true>
__device__ __forceinline__ void scores(float (*s)[4], const unsigned int (*a)[4],
                                       const __half* rows, const __half* own = nullptr) {
#pragma unroll
  for (int x = 0; x < 4; ++x) s[0][x] = s[1][x] = 0;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    unsigned int b[4], read[4];
    load_b_transposed(b, rows + 16 * step, PITCH);
    if (!HELD) load_a(read, own + 16 * step, PITCH);
    mma(s[0], HELD ? a[step] : read, b);
    mma(s[1], HELD ? a[step] : read, b + 2);
  }
}

// `sum` (16 x E) += `p` (16 x 16, float) times 16 rows of a tile.
__device__ __forceinline__ void add_product(float (*sum)[4], const float (*p)[4],
                                            const __half* rows) {
  const unsigned int a[4] = {pair_of(p[0][0], p[0][1]), pair_of(p[0][2], p[0][3]),
                             pair_of(p[1][0], p[1][1]), pair_of(p[1][2], p[1][3])};
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    unsigned int b[4];
    load_b(b, rows + 16 * step, PITCH);
    mma(sum[2 * step], a, b);
    mma(sum[2 * step + 1], a, b + 2);
  }
}

// Writes a warp's 16 rows of a result. out: the address of column 0 of the first row. A lane has
// elements of two rows. It multiplies row g by factor[0] and row g + 8 by factor[1].
__device__ __forceinline__ void write_own(__half* out, long long row, int n_rows,
                                          const float (*sum)[4], const float* factor) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < 2 * STEPS; ++n)
    for (int h = 0; h < 2; ++h) {
      const int i = g + 8 * h, e = 8 * n + 2 * t;
      if (i >= n_rows) continue;  // guard
      __half* at = out + i * row + e;
      const unsigned int both = pair_of(sum[n][2 * h] * factor[h], sum[n][2 * h + 1] * factor[h]);
      if (E % 2 == 0) {
        if (e < E) *(unsigned int*)at = both;
      } else {
        if (e < E) at[0] = __ushort_as_half((unsigned short)both);
        if (e + 1 < E) at[1] = __ushort_as_half((unsigned short)(both >> 16));
      }
    }
}

// Forward. grid (ceil(L / 64), H, B), block 128.
extern "C" __global__ void __launch_bounds__(128, 2) attention_mma(
    __half* o, float* lse, const __half* q, const __half* k, const __half* v, SHAPE) {
  __shared__ __align__(16) __half kt[SIDE * PITCH];
  __shared__ __align__(16) __half vt[SIDE * PITCH];
  __shared__ unsigned char bits[SIDE * DRAWN(SIDE)];
  const int first = blockIdx.x * SIDE, mine = threadIdx.x / 32 * 16;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const long long head = blockIdx.y, batch = blockIdx.z;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  const Pairs pair = PAIRS(batch, head);
  unsigned int qf[STEPS][4];
  load_tile<SIDE>(kt, q + batch * q_batch + head * q_head + first * q_row, q_row,
                  n_queries - first);
  __syncthreads();
  load_own(qf, kt);  // q stays in registers, so k can use q's shared memory
  float top[2] = {LOWEST, LOWEST}, total[2] = {}, sum[2 * STEPS][4] = {};
  const int end = causal ? min(first + SIDE, n_keys) : n_keys;
  for (int j0 = 0; j0 < end; j0 += SIDE) {
    __syncthreads();  // all threads have read the tiles
    load_tile<SIDE>(kt, k + j0 * k_row, k_row, n_keys - j0);
    load_tile<SIDE>(vt, v + j0 * v_row, v_row, n_keys - j0);
    draw_tile<SIDE>(bits, pair, first, SIDE, j0);
    __syncthreads();
    float s[SIDE / 8][4], shrink[2];
#pragma unroll
    for (int n = 0; n < SIDE / 16; ++n) scores(s + 2 * n, qf, kt + 16 * n * PITCH);
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // row g, row g + 8
      float larger = top[h], added_up = 0;
      const int i = first + mine + g + 8 * h;
#pragma unroll
      for (int n = 0; n < SIDE / 4; ++n) {
        const int j = j0 + n / 2 * 8 + 2 * t + n % 2;
        float& x = s[n / 2][2 * h + n % 2];
        const bool sees = i < n_queries && j < n_keys && (!causal || j <= i);
        x = sees ? pair.score(scale * x, i, j) : -INFINITY;
        larger = fmaxf(larger, x);
      }
      larger = fmaxf(larger, __shfl_xor_sync(WHOLE, larger, 1));
      larger = fmaxf(larger, __shfl_xor_sync(WHOLE, larger, 2));
      shrink[h] = expf(top[h] - larger);
      top[h] = larger;
#pragma unroll
      for (int n = 0; n < SIDE / 4; ++n) {
        float& x = s[n / 2][2 * h + n % 2];
        x = expf(x - larger);
        added_up += x;
        x *= kept_in<SIDE>(bits, pair, first, mine + g + 8 * h, j0, n / 2 * 8 + 2 * t + n % 2);
      }
      total[h] = total[h] * shrink[h] + added_up;  // sum of this lane's columns
    }
#pragma unroll
    for (int n = 0; n < 2 * STEPS; ++n)
      for (int x = 0; x < 4; ++x) sum[n][x] *= shrink[x / 2];
#pragma unroll
    for (int n = 0; n < SIDE / 16; ++n) add_product(sum, s + 2 * n, vt + 16 * n * PITCH);
  }
  float factor[2];
  for (int h = 0; h < 2; ++h) {
    total[h] += __shfl_xor_sync(WHOLE, total[h], 1);
    total[h] += __shfl_xor_sync(WHOLE, total[h], 2);
    factor[h] = inverse(total[h]);
    const int i = first + mine + g + 8 * h;
    if (t == 0 && i < n_queries)  // guard
      lse[(batch * gridDim.y + head) * n_queries + i] = log_sum(top[h], total[h]);
  }
  write_own(o + ((batch * n_queries + first + mine) * gridDim.y + head) * E,
            (long long)gridDim.y * E, n_queries - first - mine, sum, factor);
}

// gq: a warp computes 16 query rows, and takes 16 keys at a time. lse is known, so no maximum and
// no sum of a row is needed.
extern "C" __global__ void __launch_bounds__(128, 2) attention_grad_q_mma(
    __half* gq, const __half* go, const float* lse, const float* dots,
    const __half* q, const __half* k, const __half* v, SHAPE) {
  __shared__ __align__(16) __half kt[SIDE * PITCH];
  __shared__ __align__(16) __half vt[SIDE * PITCH];
  __shared__ unsigned char bits[SIDE * DRAWN(SIDE)];
  const int first = blockIdx.x * SIDE, mine = threadIdx.x / 32 * 16;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const long long head = blockIdx.y, batch = blockIdx.z, row = (long long)gridDim.y * E;
  const long long start = (batch * n_queries + first) * gridDim.y + head;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  const Pairs pair = PAIRS(batch, head);
  unsigned int qf[STEPS][4], gf[STEPS][4];
  load_tile<SIDE>(kt, q + batch * q_batch + head * q_head + first * q_row, q_row,
                  n_queries - first);
  load_tile<SIDE>(vt, go + start * E, row, n_queries - first);
  __syncthreads();
  load_own(qf, kt);
  load_own(gf, vt);
  float l[2], d[2], sum[2 * STEPS][4] = {};
  for (int h = 0; h < 2; ++h) {
    const int i = mine + g + 8 * h;
    const bool there = first + i < n_queries;
    l[h] = there ? lse[(batch * gridDim.y + head) * n_queries + first + i] : 0.0f;
    d[h] = there ? dots[start + (long long)i * gridDim.y] : 0.0f;
  }
  const int end = causal ? min(first + SIDE, n_keys) : n_keys;
  for (int j0 = 0; j0 < end; j0 += SIDE) {
    __syncthreads();
    load_tile<SIDE>(kt, k + j0 * k_row, k_row, n_keys - j0);
    load_tile<SIDE>(vt, v + j0 * v_row, v_row, n_keys - j0);
    draw_tile<SIDE>(bits, pair, first, SIDE, j0);
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < SIDE; n += 16) {
      float s[2][4], gp[2][4];
      scores(s, qf, kt + n * PITCH);
      scores(gp, gf, vt + n * PITCH);
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int h = x / 2 % 2, i = first + mine + g + 8 * h;
        const int at = n + x / 4 * 8 + 2 * t + x % 2, j = j0 + at;
        float& sx = s[x / 4][x % 4];
        const bool sees = i < n_queries && j < n_keys && (!causal || j <= i);
        const float kept = kept_in<SIDE>(bits, pair, first, mine + g + 8 * h, j0, at);
        sx = sees ? expf(pair.score(scale * sx, i, j) - l[h])
                * (gp[x / 4][x % 4] * kept - d[h]) : 0.0f;
      }
      add_product(sum, s, kt + n * PITCH);
    }
  }
  const float factor[2] = {scale, scale};
  write_own(gq + start * E + mine * row, row, n_queries - first - mine, sum, factor);
}

// gk and gv: a warp computes 16 key rows, and takes 16 queries at a time. It computes S^T and gP^T,
// so that a row of the matrix belongs to a key. If E > 96, the sums of gk and gv fill 128 registers
// of a thread. Then k and v stay in shared memory, and the tiles of q and go are smaller.
constexpr bool HOLDS = E <= 96;
constexpr int TALL = HOLDS ? 64 : 16;
constexpr int TILES = 2 * SIDE + (HOLDS ? 0 : 2 * TALL);  // rows in shared memory
extern "C" __global__ void __launch_bounds__(128, 2) attention_grad_kv_mma(
    __half* gk, __half* gv, const __half* go, const float* lse, const float* dots,
    const __half* q, const __half* k, const __half* v, SHAPE) {
  __shared__ __align__(16) __half tiles[TILES * PITCH];
  __shared__ unsigned char bits[TALL * DRAWN(SIDE)];
  __half *kt = tiles, *vt = tiles + SIDE * PITCH, *qt = HOLDS ? tiles : tiles + 2 * SIDE * PITCH,
         *got = qt + TALL * PITCH;
  const int first = blockIdx.x * SIDE, mine = threadIdx.x / 32 * 16;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const long long head = blockIdx.y, batch = blockIdx.z, row = (long long)gridDim.y * E;
  const long long start = (batch * n_keys + first) * gridDim.y + head;
  q += batch * q_batch + head * q_head;
  lse += (batch * gridDim.y + head) * n_queries;
  dots += batch * n_queries * gridDim.y + head;
  go += (batch * n_queries * gridDim.y + head) * E;
  const Pairs pair = PAIRS(batch, head);
  unsigned int kf[STEPS][4], vf[STEPS][4];
  load_tile<SIDE>(kt, k + batch * k_batch + head * k_head + first * k_row, k_row, n_keys - first);
  load_tile<SIDE>(vt, v + batch * v_batch + head * v_head + first * v_row, v_row, n_keys - first);
  __syncthreads();
  // If k and v are in registers, q and go use the shared memory of k and v.
  if (HOLDS) load_own(kf, kt), load_own(vf, vt);
  float sum_k[2 * STEPS][4] = {}, sum_v[2 * STEPS][4] = {};
  // causal: no query before `first` may use these keys
  for (int i0 = causal ? first : 0; i0 < n_queries; i0 += TALL) {
    __syncthreads();
    load_tile<TALL>(qt, q + i0 * q_row, q_row, n_queries - i0);
    load_tile<TALL>(got, go + i0 * row, row, n_queries - i0);
    draw_tile<SIDE>(bits, pair, i0, TALL, first);
    __syncthreads();
#pragma unroll 1  // unrolled by two it would need twice the registers
    for (int n = 0; n < TALL; n += 16) {
      float p[2][4], gs[2][4];
      scores<HOLDS>(p, kf, qt + n * PITCH, kt + mine * PITCH);
      scores<HOLDS>(gs, vf, got + n * PITCH, vt + mine * PITCH);
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int own = mine + g + x / 2 % 2 * 8, j = first + own;
        const int at = n + x / 4 * 8 + 2 * t + x % 2, i = i0 + at;
        float &px = p[x / 4][x % 4], &gx = gs[x / 4][x % 4];
        const bool sees = i < n_queries && j < n_keys && (!causal || j <= i);
        const float kept = kept_in<SIDE>(bits, pair, i0, at, first, own);
        px = sees ? expf(pair.score(scale * px, i, j) - lse[i]) : 0.0f;
        gx = sees ? px * (gx * kept - dots[(long long)i * gridDim.y]) : 0.0f;
        px *= kept;
      }
      add_product(sum_v, p, got + n * PITCH);
      add_product(sum_k, gs, qt + n * PITCH);
    }
  }
  const float by_scale[2] = {scale, scale}, once[2] = {1, 1};
  write_own(gk + start * E + mine * row, row, n_keys - first - mine, sum_k, by_scale);
  write_own(gv + start * E + mine * row, row, n_keys - first - mine, sum_v, once);
}

// Attention on a GPU, backward, without the L x S matrix of scores in memory. P is computed again,
// from lse, which attention.cu has written. On a CPU, training uses cpu/attention_tile.cu.
//
//   P = exp(S - lse)   S = scale q k^T   D = sum_e go o   gP = go v^T   gS = P (gP - D)
//   gq = scale gS k    gk = scale gS^T q    gv = P^T go
//   causal: query i sees keys 0 to i     shapes, strides and grid: attention.cuh
//
// Each rung has a kernel for gq, which sums over keys, and a kernel for gk and gv, which sums over
// queries. L is the number of queries, S the number of keys, and E the length of a row. The table
// shows how many elements are read from memory for each row of a gradient. For a row of gq they are
// elements of k and v. For a row of gk and gv they are elements of q and go.
//              gq           gk and gv
//   _naive     3 S E        4 L E         one thread computes a row
//   _shared    2 S E / 64   2 L E / 64    64 rows (32 if E > 64) share each tile
//   _warp      2 S E / 16   3 L E / 16    a warp computes 4 rows, and a block 16
// A thread that sums a whole row needs E registers for its sums, or 2 E for gk and gv. If a thread
// needs more registers than it has, it spills. _naive spills if E is 64 or more. _shared spills in
// gk and gv if E is 64 or more, and in gq if E is 128 or more. _warp never spills. There are no
// atomics, so every run gives the same bits.
//
// Expected share of a GPU's float peak. It is computed, not measured. _naive reaches 3%, _shared 10
// to 15%, and _warp 20%, for the reasons in attention.cu. attention_row_dot reaches 60% of a copy's
// bandwidth. Each thread reads a whole row, so a warp reads from 32 cache lines at once. The cache
// must keep these lines until the threads have read all of their bytes.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention" (2022).
// Wrapper: minidl/ops/attention_kernel.py   Test: tests/ops/test_attention_kernel.py
#include "attention_rows.cuh"

// Computes D, or other dot products of rows: out[i] = sum_e a[i][e] b[i][e]. A thread computes one
// row, and reads 2 E elements.
extern "C" __global__ void attention_row_dot(float* out, const T* a, const T* b, int n_rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n_rows) out[i] = dot(a + (long long)i * E, b + (long long)i * E);  // guard
}

// v1, gq: one thread computes a query row, as in attention_naive. lse is known, so one pass over
// the keys is enough.
extern "C" __global__ void attention_grad_q_naive(
    T* gq, const T* go, const float* lse, const float* dots,
    const T* q, const T* k, const T* v, SHAPE) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n_queries) return;  // guard
  const long long head = blockIdx.y, batch = blockIdx.z,
      row = (batch * n_queries + i) * gridDim.y + head;
  const float l = lse[(batch * gridDim.y + head) * n_queries + i];
  q += batch * q_batch + head * q_head + i * q_row;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  const Pairs pair = PAIRS(batch, head);
  float sum[E];
  for (int e = 0; e < E; ++e) sum[e] = 0;
  for (int j = 0; j < (causal ? min(i + 1, n_keys) : n_keys); ++j) {
    const float gs = expf(pair.score(scale * dot(q, k + j * k_row), i, j) - l)
        * (dot(go + row * E, v + j * v_row) * pair.kept(i, j) - dots[row]);
    for (int e = 0; e < E; ++e) sum[e] += gs * to_float(k[j * k_row + e]);
  }
  for (int e = 0; e < E; ++e) gq[row * E + e] = from_float<T>(scale * sum[e]);
}

// v1, gk and gv: one thread computes a key row. It sums over the queries that may use the key. It
// must compute P again, but it does not have to add up results of several threads.
extern "C" __global__ void attention_grad_kv_naive(
    T* gk, T* gv, const T* go, const float* lse, const float* dots,
    const T* q, const T* k, const T* v, SHAPE) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= n_keys) return;  // guard
  const long long head = blockIdx.y, batch = blockIdx.z;
  q += batch * q_batch + head * q_head;
  k += batch * k_batch + head * k_head + j * k_row;
  v += batch * v_batch + head * v_head + j * v_row;
  lse += (batch * gridDim.y + head) * n_queries;
  const Pairs pair = PAIRS(batch, head);
  float sum_k[E], sum_v[E];
  for (int e = 0; e < E; ++e) sum_k[e] = sum_v[e] = 0;
  for (int i = causal ? j : 0; i < n_queries; ++i) {
    const long long row = (batch * n_queries + i) * gridDim.y + head;
    const float p = expf(pair.score(scale * dot(q + i * q_row, k), i, j) - lse[i]);
    const float kept = pair.kept(i, j), gs = p * (dot(go + row * E, v) * kept - dots[row]);
    for (int e = 0; e < E; ++e) {
      sum_k[e] += gs * to_float(q[i * q_row + e]);
      sum_v[e] += p * kept * to_float(go[row * E + e]);
    }
  }
  const long long row = (batch * n_keys + j) * gridDim.y + head;
  for (int e = 0; e < E; ++e) {
    gk[row * E + e] = from_float<T>(scale * sum_k[e]);
    gv[row * E + e] = from_float<T>(sum_v[e]);
  }
}

#define TILE_BACK (TILE_KEYS / 2)  // rows of a tile: two tiles of ROWS rows must fit, too

// v2, gq: the block loads each tile of k and v once for all its query rows, as attention_shared
// does.
extern "C" __global__ void attention_grad_q_shared(
    T* gq, const T* go, const float* lse, const float* dots,
    const T* q, const T* k, const T* v, SHAPE) {
  __shared__ float qt[ROWS * PITCH];
  __shared__ float got[ROWS * PITCH];
  __shared__ float kt[TILE_BACK * PITCH];
  __shared__ float vt[TILE_BACK * PITCH];
  const int first = blockIdx.x * ROWS, t = threadIdx.x, i = first + t;
  const long long head = blockIdx.y, batch = blockIdx.z, row = gridDim.y * E;
  const long long start = (batch * n_queries + first) * gridDim.y + head;
  const bool mine = i < n_queries;  // the other threads only load
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  load_rows<ROWS>(qt, q + batch * q_batch + head * q_head + first * q_row, q_row,
                  n_queries - first);
  load_rows<ROWS>(got, go + start * E, row, n_queries - first);
  const float l = mine ? lse[(batch * gridDim.y + head) * n_queries + i] : 0.0f;
  const float d = mine ? dots[start + (long long)t * gridDim.y] : 0.0f;
  const Pairs pair = PAIRS(batch, head);
  float sum[E];
  for (int e = 0; e < E; ++e) sum[e] = 0;
  const int end = causal ? min(first + ROWS, n_keys) : n_keys;
  for (int j0 = 0; j0 < end; j0 += TILE_BACK) {
    load_rows<TILE_BACK>(kt, k + j0 * k_row, k_row, n_keys - j0);
    load_rows<TILE_BACK>(vt, v + j0 * v_row, v_row, n_keys - j0);
    __syncthreads();  // the tiles are complete
    const int seen = min(min(TILE_BACK, n_keys - j0), causal ? i - j0 + 1 : TILE_BACK);
    for (int j = 0; j < (mine ? seen : 0); ++j) {
      float s = 0, gp = 0;
      for (int e = 0; e < E; ++e) {
        s += qt[t * PITCH + e] * kt[j * PITCH + e];
        gp += got[t * PITCH + e] * vt[j * PITCH + e];
      }
      const float gs = expf(pair.score(scale * s, i, j0 + j) - l)
          * (gp * pair.kept(i, j0 + j) - d);
      for (int e = 0; e < E; ++e) sum[e] += gs * kt[j * PITCH + e];
    }
    __syncthreads();  // all threads have read the tiles
  }
  if (!mine) return;  // guard
  for (int e = 0; e < E; ++e) gq[start * E + t * row + e] = from_float<T>(scale * sum[e]);
}

// v2, gk and gv: the block loads each tile of q and go once for all its key rows.
extern "C" __global__ void attention_grad_kv_shared(
    T* gk, T* gv, const T* go, const float* lse, const float* dots,
    const T* q, const T* k, const T* v, SHAPE) {
  __shared__ float kt[ROWS * PITCH];
  __shared__ float vt[ROWS * PITCH];
  __shared__ float qt[TILE_BACK * PITCH];
  __shared__ float got[TILE_BACK * PITCH];
  const int first = blockIdx.x * ROWS, t = threadIdx.x, j = first + t;
  const long long head = blockIdx.y, batch = blockIdx.z, row = gridDim.y * E;
  q += batch * q_batch + head * q_head;
  load_rows<ROWS>(kt, k + batch * k_batch + head * k_head + first * k_row, k_row, n_keys - first);
  load_rows<ROWS>(vt, v + batch * v_batch + head * v_head + first * v_row, v_row, n_keys - first);
  lse += (batch * gridDim.y + head) * n_queries;
  dots += batch * n_queries * gridDim.y + head;
  go += (batch * n_queries * gridDim.y + head) * E;
  const Pairs pair = PAIRS(batch, head);
  float sum_k[E], sum_v[E];
  for (int e = 0; e < E; ++e) sum_k[e] = sum_v[e] = 0;
  for (int i0 = causal ? first : 0; i0 < n_queries; i0 += TILE_BACK) {
    load_rows<TILE_BACK>(qt, q + i0 * q_row, q_row, n_queries - i0);
    load_rows<TILE_BACK>(got, go + i0 * row, row, n_queries - i0);
    __syncthreads();
    const int seen = j < n_keys ? min(TILE_BACK, n_queries - i0) : 0;
    for (int i = causal ? max(0, j - i0) : 0; i < seen; ++i) {
      float s = 0, gp = 0;
      for (int e = 0; e < E; ++e) {
        s += qt[i * PITCH + e] * kt[t * PITCH + e];
        gp += got[i * PITCH + e] * vt[t * PITCH + e];
      }
      const float p = expf(pair.score(scale * s, i0 + i, j) - lse[i0 + i]);
      const float kept = pair.kept(i0 + i, j);
      const float gs = p * (gp * kept - dots[(long long)(i0 + i) * gridDim.y]);
      for (int e = 0; e < E; ++e) {
        sum_k[e] += gs * qt[i * PITCH + e];
        sum_v[e] += p * kept * got[i * PITCH + e];
      }
    }
    __syncthreads();
  }
  if (j >= n_keys) return;  // guard
  const long long at = ((batch * n_keys + j) * gridDim.y + head) * E;
  for (int e = 0; e < E; ++e) {
    gk[at + e] = from_float<T>(scale * sum_k[e]);
    gv[at + e] = from_float<T>(sum_v[e]);
  }
}

// v3, gq: a warp computes 4 query rows. It takes 32 keys at a time, one in each lane.
extern "C" __global__ void attention_grad_q_warp(
    T* gq, const T* go, const float* lse, const float* dots,
    const T* q, const T* k, const T* v, SHAPE) {
  __shared__ float qt[OWN * PITCH];
  __shared__ float got[OWN * PITCH];
  __shared__ float kvt[32 * PITCH];
  __shared__ unsigned char bits[OWN * DRAWN(32)];
  const int first = blockIdx.x * OWN, lane = threadIdx.x % 32, mine = threadIdx.x / 32 * EACH;
  const long long head = blockIdx.y, batch = blockIdx.z, row = gridDim.y * E;
  const long long start = (batch * n_queries + first) * gridDim.y + head;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  load_rows<OWN>(qt, q + batch * q_batch + head * q_head + first * q_row, q_row, n_queries - first);
  load_rows<OWN>(got, go + start * E, row, n_queries - first);
  const Pairs pair = PAIRS(batch, head);
  float s[EACH], gp[EACH], sum[EACH][COLUMNS] = {};
  const int end = causal ? min(first + OWN, n_keys) : n_keys;
  for (int j0 = 0; j0 < end; j0 += 32) {
    load_rows<32>(kvt, v + j0 * v_row, v_row, n_keys - j0);
    draw_tile<32>(bits, pair, first, OWN, j0);
    __syncthreads();
    lane_products(gp, got + mine * PITCH, kvt, lane);
    __syncthreads();
    load_rows<32>(kvt, k + j0 * k_row, k_row, n_keys - j0);
    __syncthreads();
    lane_products(s, qt + mine * PITCH, kvt, lane);
    for (int r = 0; r < EACH; ++r) {
      const int i = first + mine + r, j = j0 + lane;
      const bool sees = i < n_queries && j < n_keys && (!causal || j <= i);
      const float kept = kept_in<32>(bits, pair, first, mine + r, j0, lane);
      s[r] = sees ? expf(pair.score(scale * s[r], i, j)
                         - lse[(batch * gridDim.y + head) * n_queries + i])
              * (gp[r] * kept - dots[start + (long long)(mine + r) * gridDim.y])
          : 0.0f;
    }
    add_product(sum, s, kvt, lane);
    __syncthreads();
  }
  for (int r = 0; r < EACH; ++r)
    for (int c = 0; c < COLUMNS; ++c)
      if (first + mine + r < n_queries && lane + 32 * c < E)  // guard
        gq[start * E + (mine + r) * row + lane + 32 * c] = from_float<T>(scale * sum[r][c]);
}

// v3, gk and gv: a warp computes 4 key rows. It takes 32 queries at a time, one in each lane.
extern "C" __global__ void attention_grad_kv_warp(
    T* gk, T* gv, const T* go, const float* lse, const float* dots,
    const T* q, const T* k, const T* v, SHAPE) {
  __shared__ float kt[OWN * PITCH];
  __shared__ float vt[OWN * PITCH];
  __shared__ float tile[32 * PITCH];  // a tile of go, later a tile of q
  __shared__ unsigned char bits[32 * DRAWN(OWN)];
  const int first = blockIdx.x * OWN, lane = threadIdx.x % 32, mine = threadIdx.x / 32 * EACH;
  const long long head = blockIdx.y, batch = blockIdx.z, row = gridDim.y * E;
  const long long start = (batch * n_keys + first) * gridDim.y + head;
  q += batch * q_batch + head * q_head;
  load_rows<OWN>(kt, k + batch * k_batch + head * k_head + first * k_row, k_row, n_keys - first);
  load_rows<OWN>(vt, v + batch * v_batch + head * v_head + first * v_row, v_row, n_keys - first);
  lse += (batch * gridDim.y + head) * n_queries;
  dots += batch * n_queries * gridDim.y + head;
  go += (batch * n_queries * gridDim.y + head) * E;
  const Pairs pair = PAIRS(batch, head);
  float p[EACH], gs[EACH], sum_k[EACH][COLUMNS] = {}, sum_v[EACH][COLUMNS] = {};
  // causal: no query before `first` may use these keys
  for (int i0 = causal ? first : 0; i0 < n_queries; i0 += 32) {
    const int i = i0 + lane;
    load_rows<32>(tile, q + i0 * q_row, q_row, n_queries - i0);
    draw_tile<OWN>(bits, pair, i0, 32, first);
    __syncthreads();
    lane_products(p, kt + mine * PITCH, tile, lane);
    __syncthreads();
    load_rows<32>(tile, go + i0 * row, row, n_queries - i0);
    __syncthreads();
    lane_products(gs, vt + mine * PITCH, tile, lane);
    for (int r = 0; r < EACH; ++r) {
      const int j = first + mine + r;
      const bool sees = i < n_queries && j < n_keys && (!causal || j <= i);
      const float kept = kept_in<OWN>(bits, pair, i0, lane, first, mine + r);
      p[r] = sees ? expf(pair.score(scale * p[r], i, j) - lse[i]) : 0.0f;
      gs[r] = sees ? p[r] * (gs[r] * kept - dots[(long long)i * gridDim.y]) : 0.0f;
      p[r] *= kept;
    }
    add_product(sum_v, p, tile, lane);
    __syncthreads();
    load_rows<32>(tile, q + i0 * q_row, q_row, n_queries - i0);
    __syncthreads();
    add_product(sum_k, gs, tile, lane);
    __syncthreads();
  }
  for (int r = 0; r < EACH; ++r)
    for (int c = 0; c < COLUMNS; ++c)
      if (first + mine + r < n_keys && lane + 32 * c < E) {  // guard
        const long long at = start * E + (mine + r) * row + lane + 32 * c;
        gk[at] = from_float<T>(scale * sum_k[r][c]), gv[at] = from_float<T>(sum_v[r][c]);
      }
}

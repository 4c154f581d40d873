// Attention on a GPU, forward, without the L x S matrix of scores in memory. The kernels are a
// ladder: each rung is faster than the one before. attention_backward.cu computes the gradients. On
// a CPU, training uses cpu/attention_tile.cu.
//
//   S = scale q k^T    P = softmax(S)    o = P v    lse = log(sum(exp(S)))
//   causal: query i sees keys 0 to i     shapes, strides and grid: attention.cuh
//
// L is the number of queries, S the number of keys, and E the length of a row of q, k or v. The
// table shows how many elements of k and v are read from memory for each query row:
//   attention_naive    3 S E        One thread computes a query row. It reads k twice and v once
//   attention_shared   2 S E / 64   64 query rows (32 if E > 64) share tiles of k and v. With
//                                   online softmax each tile is read once
//   attention_warp     2 S E / 16   A warp computes 4 rows of o, and a block 16. Each lane sums
//                                   E / 32 columns of o
// A thread that sums a whole row of o needs E registers for its sums. If E is 64 or more,
// attention_naive needs more registers than a thread has, and spills. attention_warp never spills.
// A matrix of scores in memory needs 4 L S bytes for each head, and is written once and read
// several times. These kernels write only o and lse.
//
// Expected share of a GPU's float peak. It is computed, not measured. _naive reaches 3%, because it
// waits for the cache. _shared reaches 15%: it reads one float from shared memory for each
// multiply-add, and each thread needs 100 registers or more. _warp reaches 25%: it reads one float
// for four multiply-adds, but it needs a shuffle for each number of P. Memory does not slow _warp
// down, because it does 16 multiply-adds for each element that it reads from memory.
// attention_mma.cu uses tensor cores, in half.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention" (2022); Milakov & Gimelshein (2018), online
// softmax.
// Wrapper: minidl/ops/attention_kernel.py   Test: tests/ops/test_attention_kernel.py
#include "attention_rows.cuh"

// v1: one thread computes a query row. One loop over the keys finds the maximum, and a second loop
// sums. So each score is computed twice. Neighbouring threads read the same keys. If they read a
// key at different times, it may be evicted from the cache in between.
extern "C" __global__ void attention_naive(
    T* o, float* lse, const T* q, const T* k, const T* v, SHAPE) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n_queries) return;  // guard
  const long long head = blockIdx.y, batch = blockIdx.z;
  q += batch * q_batch + head * q_head + i * q_row;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  const Pairs pair = PAIRS(batch, head);
  const int end = causal ? min(i + 1, n_keys) : n_keys;
  float top = LOWEST, total = 0, sum[E];
  for (int e = 0; e < E; ++e) sum[e] = 0;
  for (int j = 0; j < end; ++j)
    top = fmaxf(top, pair.score(scale * dot(q, k + j * k_row), i, j));
  for (int j = 0; j < end; ++j) {
    const float p = expf(pair.score(scale * dot(q, k + j * k_row), i, j) - top);
    total += p;
    const float kept = p * pair.kept(i, j);  // dropout comes after the softmax, so total sums all p
    for (int e = 0; e < E; ++e) sum[e] += kept * to_float(v[j * v_row + e]);
  }
  o += ((batch * n_queries + i) * gridDim.y + head) * E;
  for (int e = 0; e < E; ++e) o[e] = from_float<T>(sum[e] * inverse(total));
  lse[(batch * gridDim.y + head) * n_queries + i] = log_sum(top, total);
}

// v2: the block loads each tile of k and v once for all its rows. With online softmax one pass over
// the keys is enough: when a larger maximum comes, the sums are multiplied by exp(old - new).
extern "C" __global__ void attention_shared(
    T* o, float* lse, const T* q, const T* k, const T* v, SHAPE) {
  __shared__ float qt[ROWS * PITCH];
  __shared__ float kt[TILE_KEYS * PITCH];
  __shared__ float vt[TILE_KEYS * PITCH];
  const int first = blockIdx.x * ROWS, t = threadIdx.x, i = first + t;
  const long long head = blockIdx.y, batch = blockIdx.z;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  load_rows<ROWS>(qt, q + batch * q_batch + head * q_head + first * q_row, q_row,
                  n_queries - first);
  const Pairs pair = PAIRS(batch, head);
  float top = LOWEST, total = 0, sum[E];
  for (int e = 0; e < E; ++e) sum[e] = 0;
  // `end` must be the same for all threads of the block, because the loop over j0 has barriers
  const int end = causal ? min(first + ROWS, n_keys) : n_keys;
  for (int j0 = 0; j0 < end; j0 += TILE_KEYS) {
    load_rows<TILE_KEYS>(kt, k + j0 * k_row, k_row, n_keys - j0);
    load_rows<TILE_KEYS>(vt, v + j0 * v_row, v_row, n_keys - j0);
    __syncthreads();  // the tiles are complete
    const int seen = min(min(TILE_KEYS, n_keys - j0), causal ? i - j0 + 1 : TILE_KEYS);
    for (int j = 0; j < (i < n_queries ? seen : 0); ++j) {
      float s = 0;
      for (int e = 0; e < E; ++e) s += qt[t * PITCH + e] * kt[j * PITCH + e];
      s = pair.score(scale * s, i, j0 + j);
      if (s > top) {  // rare: in random order, about log(S) times in a row of scores
        const float shrink = expf(top - s);
        total *= shrink;
        for (int e = 0; e < E; ++e) sum[e] *= shrink;
        top = s;
      }
      const float p = expf(s - top);
      total += p;
      const float kept = p * pair.kept(i, j0 + j);
      for (int e = 0; e < E; ++e) sum[e] += kept * vt[j * PITCH + e];
    }
    __syncthreads();  // all threads have read the tiles
  }
  if (i >= n_queries) return;  // guard
  o += ((batch * n_queries + i) * gridDim.y + head) * E;
  for (int e = 0; e < E; ++e) o[e] = from_float<T>(sum[e] * inverse(total));
  lse[(batch * gridDim.y + head) * n_queries + i] = log_sum(top, total);
}

// v3: a warp computes 4 query rows, and takes 32 keys at a time. A lane computes the scores of one
// key, and shuffles find the maximum and the sum of a row. For o = P v each lane sums E / 32
// columns of the 4 rows. A thread holds only 4 E / 32 sums, so more warps fit on the GPU and hide
// the latency of memory.
extern "C" __global__ void attention_warp(
    T* o, float* lse, const T* q, const T* k, const T* v, SHAPE) {
  __shared__ float qt[OWN * PITCH];
  __shared__ float kvt[32 * PITCH];  // a tile of k, later a tile of v
  __shared__ unsigned char bits[OWN * DRAWN(32)];
  const int first = blockIdx.x * OWN, lane = threadIdx.x % 32, mine = threadIdx.x / 32 * EACH;
  const long long head = blockIdx.y, batch = blockIdx.z;
  k += batch * k_batch + head * k_head;
  v += batch * v_batch + head * v_head;
  load_rows<OWN>(qt, q + batch * q_batch + head * q_head + first * q_row, q_row, n_queries - first);
  const Pairs pair = PAIRS(batch, head);
  float top[EACH], total[EACH], s[EACH], sum[EACH][COLUMNS];
  for (int r = 0; r < EACH; ++r) {
    top[r] = LOWEST, total[r] = 0;
    for (int c = 0; c < COLUMNS; ++c) sum[r][c] = 0;
  }
  const int end = causal ? min(first + OWN, n_keys) : n_keys;
  for (int j0 = 0; j0 < end; j0 += 32) {
    load_rows<32>(kvt, k + j0 * k_row, k_row, n_keys - j0);
    draw_tile<32>(bits, pair, first, OWN, j0);
    __syncthreads();
    lane_products(s, qt + mine * PITCH, kvt, lane);
    __syncthreads();  // all threads have read k
    load_rows<32>(kvt, v + j0 * v_row, v_row, n_keys - j0);
    for (int r = 0; r < EACH; ++r) {
      const int i = first + mine + r, j = j0 + lane;
      const bool sees = i < n_queries && j < n_keys && (!causal || j <= i);
      s[r] = sees ? pair.score(scale * s[r], i, j) : -INFINITY;
      const float larger = fmaxf(top[r], warp_max(s[r])), shrink = expf(top[r] - larger);
      s[r] = expf(s[r] - larger);
      total[r] = total[r] * shrink + warp_sum(s[r]);
      top[r] = larger;
      s[r] *= kept_in<32>(bits, pair, first, mine + r, j0, lane);
      for (int c = 0; c < COLUMNS; ++c) sum[r][c] *= shrink;
    }
    __syncthreads();
    add_product(sum, s, kvt, lane);
    __syncthreads();
  }
  for (int r = 0; r < EACH; ++r) {
    const int i = first + mine + r;
    if (i >= n_queries) continue;  // guard
    for (int c = 0; c < COLUMNS; ++c)
      if (lane + 32 * c < E)
        o[((batch * n_queries + i) * gridDim.y + head) * E + lane + 32 * c] =
            from_float<T>(sum[r][c] * inverse(total[r]));
    if (lane == 0) lse[(batch * gridDim.y + head) * n_queries + i] = log_sum(top[r], total[r]);
  }
}

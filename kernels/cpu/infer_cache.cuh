// Attention with a cache of keys and values. minidl/infer/cache.py writes kernels that call these
// functions. The sizes are template parameters, so the compiler knows the length of each loop.
//
// There are H heads of queries and K heads of keys and values. H / K heads of queries share a head
// of keys. A key has E numbers. A row of qkv belongs to one token:
//
//   qkv   [ H queries | K keys | K values ], each of E numbers
//
// Test: tests/infer/test_decoder.py
#pragma once
#include "infer.cuh"

// Stores the key and the value of one head for the token at position `at`. Keys have the layout
// (context / 16, E, 16): a block has 16 tokens. So a vector holds one number of each of 16 keys,
// and the vectors of a block are neighbours in memory. Values have the layout (context, E).
template <int E>
__forceinline__ void remember(float* keys, float* values, const float* k, const float* v, int at) {
  for (int e = 0; e < E; ++e) {
    keys[(at / 16 * E + e) * 16 + at % 16] = k[e];
    values[at * E + e] = v[e];
  }
}

// out = (sum over j of s[j] times row j of `values`) / total, for VECS LANES of the E columns. The
// function keeps eight registers of partial sums, so that a multiply-add does not wait for the one
// before it.
template <int VECS, int E>
__forceinline__ void weigh(float* out, const float* s, const float* values, int n_keys,
                           float total) {
  constexpr int WAYS = 8 / VECS;
  Vec sum[WAYS][VECS] = {};
  int j = 0;
  for (; j + WAYS <= n_keys; j += WAYS)
    UNROLL for (int w = 0; w < WAYS; ++w)
      UNROLL for (int n = 0; n < VECS; ++n)
        sum[w][n] += s[j + w] * load(values + (j + w) * E + n * LANES);
  for (; j < n_keys; ++j)
    UNROLL for (int n = 0; n < VECS; ++n) sum[0][n] += s[j] * load(values + j * E + n * LANES);
  UNROLL for (int n = 0; n < VECS; ++n) {
    UNROLL for (int w = 1; w < WAYS; ++w) sum[0][n] += sum[w][n];
    store(out + n * LANES, sum[0][n] / total);
  }
}

// Attention of one token over all stored keys, with its own key: out (E) = softmax(scale q K) V.
template <int E, int CONTEXT>
__forceinline__ void attend(float* out, const float* q, const float* keys, const float* values,
                            int n_keys, float scale) {
  alignas(64) float s[CONTEXT + 16];
  float top = -INFINITY, total = 0;
  constexpr int N = 16 / LANES, WAYS = E % 4 ? 1 : N < 4 ? 4 : 2;  // WAYS sums, as in weigh
  for (int j = 0; j < n_keys; j += 16, keys += E * 16) {
    Vec part[WAYS][N] = {};
    for (int e = 0; e < E; e += WAYS)
      UNROLL for (int w = 0; w < WAYS; ++w)
        UNROLL for (int n = 0; n < N; ++n)
          part[w][n] += q[e + w] * load(keys + (e + w) * 16 + n * LANES);
    UNROLL for (int n = 0; n < N; ++n) {
      UNROLL for (int w = 1; w < WAYS; ++w) part[0][n] += part[w][n];
      store(s + j + n * LANES, part[0][n] * scale);
    }
  }
  SIMD_MAX(top) for (int j = 0; j < n_keys; ++j) top = fmaxf(top, s[j]);
  SIMD_SUM(total) for (int j = 0; j < n_keys; ++j) total += s[j] = expf(s[j] - top);
  constexpr int FULL = E / LANES, REST = FULL % 4;
  for (int n = 0; n + 4 <= FULL; n += 4)
    weigh<4, E>(out + n * LANES, s, values + n * LANES, n_keys, total);
  if (REST) {
    constexpr int first = (FULL - REST) * LANES;
    weigh<REST ? REST : 1, E>(out + first, s, values + first, n_keys, total);
  }
  for (int e = FULL * LANES; e < E; ++e) {
    float sum = 0;
    for (int j = 0; j < n_keys; ++j) sum += s[j] * values[j * E + e];
    out[e] = sum / total;
  }
}

// Rotates a query or a key by the angles of its position: y (E) from x (E). angles (E) has E / 2
// cosines, then E / 2 sines.
template <int E>
__forceinline__ void rotate(float* y, const float* x, const float* angles) {
  constexpr int HALF = E / 2;
  SIMD for (int i = 0; i < HALF; ++i) {
    const float a = x[i], b = x[i + HALF];
    y[i] = a * angles[i] - b * angles[i + HALF];
    y[i + HALF] = b * angles[i] + a * angles[i + HALF];
  }
}

// One new token of one text, for one head of keys: stores its key and value, and computes attention
// for the H / K heads of queries that share this head. out, qkv: the rows of this token. keys,
// values: the cache of this text. angles: of the token's position, or null if nothing is rotated.
template <int H, int K, int E, int CONTEXT>
__forceinline__ void attend_token(float* out, const float* qkv, float* keys, float* values,
                                  const float* angles, int head, int position, float scale) {
  constexpr int GROUP = H / K, BLOCKS = (CONTEXT + 15) / 16;
  const float* key = qkv + (H + head) * E;
  const float* value = key + K * E;
  float rotated[E];
  keys += head * (BLOCKS * E * 16LL);
  values += head * (E * (long long)CONTEXT);
  if (angles) rotate<E>(rotated, key, angles);
  remember<E>(keys, values, angles ? rotated : key, value, position);
  for (int j = head * GROUP; j < (head + 1) * GROUP; ++j) {
    const float* query = qkv + j * E;
    if (angles) rotate<E>(rotated, query, angles);
    attend<E, CONTEXT>(out + j * E, angles ? rotated : query, keys, values, position + 1, scale);
  }
}

// Stores the keys and values of a whole text, for one head of keys. full: n_tokens rows as
// whole_heads writes them, with H keys and H values.
template <int H, int K, int E, int CONTEXT>
__forceinline__ void remember_text(const float* full, float* keys, float* values, int head,
                                   int n_tokens) {
  constexpr int GROUP = H / K, BLOCKS = (CONTEXT + 15) / 16;
  const float* key = full + (H + head * GROUP) * E;
  keys += head * (BLOCKS * E * 16LL);
  values += head * (E * (long long)CONTEXT);
  for (int t = 0; t < n_tokens; ++t, key += 3 * H * E)
    remember<E>(keys, values, key, key + H * E, t);
}

// Writes a token's row of qkv in the form that the training kernel reads: out has H queries, H keys
// and H values. Queries and keys are rotated. Each key and value is copied for every head of
// queries that shares it.
template <int H, int K, int E>
__forceinline__ void whole_heads(float* out, const float* qkv, const float* angles) {
  for (int j = 0; j < H; ++j) {
    const float* key = qkv + (H + j / (H / K)) * E;
    const float* value = key + K * E;
    rotate<E>(out + j * E, qkv + j * E, angles);
    rotate<E>(out + (H + j) * E, key, angles);
    SIMD for (int i = 0; i < E; ++i) out[(2 * H + j) * E + i] = value[i];
  }
}

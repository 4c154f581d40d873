// Shared by the kernels: the element type, sums over a warp and over a block, random numbers.
// Test: tests/cuda/host/test_common.py
#pragma once

// The compiler's option -DT=float sets the element type T. So one file serves float, double and
// half.
#ifndef T
#define T float
#endif

#include <cuda_fp16.h>

// Half has only 11 bits of precision. So kernels store halves, but compute in float. double stays
// double.
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ double to_float(double x) { return x; }

template <typename To> __device__ __forceinline__ To from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half(x);
}
template <> __device__ __forceinline__ double from_float<double>(float x) { return x; }
template <typename To> __device__ __forceinline__ To from_float(double x) { return To(x); }

// Returns a b + c with one rounding. In a b + c d, a compiler may fuse the first or the second
// product with the sum. The results can differ in the last bit. mul_add fixes which product is
// fused, so the bits do not depend on the compiler. A processor without a fused instruction always
// rounds twice.
__device__ __forceinline__ float mul_add(float a, float b, float c) {
#if !defined(MINIDL_HOST)
  return fmaf(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
__device__ __forceinline__ double mul_add(double a, double b, double c) {
#if !defined(MINIDL_HOST)
  return fma(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// ---- eight halves, or four floats, in one access of 16 bytes ----

// If each lane reads one half, an instruction of a warp reads only 64 bytes. If each lane reads 16
// bytes, the instruction reads 512 bytes. So fewer warps are needed to reach the full bandwidth.
// The address must be a multiple of 16.
template <typename V> union Pack {
  uint4 all;  // loaded and stored in one instruction
  V at[16 / sizeof(V)];
};
#define PACK(V) (16 / (int)sizeof(V))  // elements in a Pack

// Returns true if x, and every row at x + i * row, begins at a multiple of 16 bytes.
template <typename V> __device__ __forceinline__ bool packs(const V* x, long long row = 0) {
  return ((unsigned long long)x | (unsigned long long)row * sizeof(V)) % 16 == 0;
}

// Returns a Pack with the elements from p on. n is the number of elements that are left. If n <
// PACK(V), the rest of the Pack is 0. whole: true if p is aligned to 16 bytes.
template <typename V> __device__ __forceinline__ Pack<V> load_pack(const V* p, int n, bool whole) {
  Pack<V> pack;
  if (whole && n >= PACK(V)) pack.all = *(const uint4*)p;
  else
    for (int i = 0; i < PACK(V); ++i) pack.at[i] = i < n ? p[i] : V(0.0f);
  return pack;
}

template <typename V> __device__ __forceinline__ void store_pack(V* p, const Pack<V>& pack, int n,
                                                                 bool whole) {
  if (whole && n >= PACK(V)) *(uint4*)p = pack.all;
  else
    for (int i = 0; i < PACK(V); ++i)
      if (i < n) p[i] = pack.at[i];
}

// Loads elements j to j + N - 1 of a row with n elements, and converts them with to_float. For an
// index outside the row the result is zero. N is 1, or a multiple of the number of elements in a
// Pack. whole: true if row + j is aligned to 16 bytes.
template <int N, typename A, typename V>
__device__ __forceinline__ void take(A* out, const V* row, int j, int n, bool whole) {
  if (N > 1 && whole && j >= 0 && j + N <= n) {
#pragma unroll
    for (int k0 = 0; k0 < N; k0 += PACK(V)) {
      const Pack<V> pack = load_pack(row + j + k0, PACK(V), true);
#pragma unroll
      for (int k = 0; k < PACK(V) && k < N; ++k) out[k0 + k] = to_float(pack.at[k]);
    }
  } else
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = j + k >= 0 && j + k < n ? to_float(row[j + k]) : A(0);
}

template <int N, typename A, typename V>
__device__ __forceinline__ void put(V* row, const A* x, int j, int n, bool whole) {
  if (N > 1 && whole && j >= 0 && j + N <= n) {
#pragma unroll
    for (int k0 = 0; k0 < N; k0 += PACK(V)) {
      Pack<V> pack;
#pragma unroll
      for (int k = 0; k < PACK(V) && k < N; ++k) pack.at[k] = from_float<V>(x[k0 + k]);
      store_pack(row + j + k0, pack, PACK(V), true);
    }
  } else
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (j + k >= 0 && j + k < n) row[j + k] = from_float<V>(x[k]);
}

// A team (a warp or a block) shares the elements of a row. Thread 0 takes the first N elements,
// thread 1 the next N, and so on. After the last thread, thread 0 takes the next N. Returns the
// column of element number k of a thread.
template <int N> __device__ __forceinline__ int column(int thread, int team, int k) {
  return N * thread + team * (k / N * N) + k % N;
}

// Returns how many elements address p lies after a multiple of 16. A Pack that begins this many
// elements before p is aligned. Returns 0 if N is 1.
template <int N, typename V> __device__ __forceinline__ int behind(const V* p) {
  return N > 1 ? (int)((unsigned long long)p % 16 / sizeof(V)) : 0;
}

// Returns e^x for x <= 0. Softmax and cross entropy use it. Their largest exponential is 1, so a
// result below 1.7e-38 may be replaced by 0. On a CPU, cpu/exp.cuh does this, and is faster than
// expf.
#ifdef MINIDL_HOST
#include "cpu/exp.cuh"
#else
__device__ __forceinline__ float exp_below_zero(float x) { return expf(x); }
#endif
__device__ __forceinline__ double exp_below_zero(double x) { return exp(x); }

// ---- sums ----

// Returns the sum of v over the 32 lanes. Every lane gets the sum. The pattern is a butterfly:
// after step s each lane holds the sum of 2^s lanes.
template <typename V> __device__ __forceinline__ V warp_sum(V v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

template <typename V> __device__ __forceinline__ V warp_max(V v) {
  for (int d = 16; d > 0; d /= 2) {
    V other = __shfl_xor_sync(0xffffffffu, v, d);
    v = v < other ? other : v;
  }
  return v;
}

// Returns the sum of v over the threads of a block. Every thread gets the sum. The block must be
// one-dimensional, and its number of threads must be a multiple of 32. scratch: 33 values in shared
// memory. Two calls of block_sum or block_max may follow each other with the same scratch. Before
// any other use of scratch, call __syncthreads().
//
//     warps   [0..31] [32..63] ...     each warp sums its own lanes
//                 \      |             lane 0 of each warp writes the warp's sum to scratch
//                  scratch             warp 0 adds these sums, and every thread reads the result
template <typename V> __device__ __forceinline__ V block_sum(V v, V* scratch) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  v = warp_sum(v);
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = warp_sum(lane < n_warps ? scratch[lane] : V(0));
    if (lane == 0) scratch[32] = v;
  }
  __syncthreads();
  return scratch[32];
}

template <typename V> __device__ __forceinline__ V block_max(V v, V* scratch) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  v = warp_max(v);
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = warp_max(scratch[lane < n_warps ? lane : 0]);
    if (lane == 0) scratch[32] = v;
  }
  __syncthreads();
  return scratch[32];
}

// team_sum and team_max return the sum and the maximum of v over the threads that share a row. If
// scratch is null, these are the threads of a warp, else the threads of the block.
template <typename V> __device__ __forceinline__ V team_sum(V v, V* scratch) {
  return scratch ? block_sum(v, scratch) : warp_sum(v);
}

template <typename V> __device__ __forceinline__ V team_max(V v, V* scratch) {
  return scratch ? block_max(v, scratch) : warp_max(v);
}

// ---- random numbers: the same bits as minidl/random.py ----

// Philox-4x64-10 (Salmon, Moraes, Dror, Shaw 2011): ten rounds of products and exchanges turn a
// counter into 256 random bits. The counter has 256 bits, but only its lowest 64 bits are used. The
// key is (seed, stream). out: 8 draws of 32 bits.
__device__ __forceinline__ void philox(unsigned long long counter, unsigned long long seed,
                                       unsigned long long stream, unsigned int* out) {
  unsigned long long c0 = counter, c1 = 0, c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    unsigned long long high0 = __umul64hi(0xD2E7470EE14C6C93ull, c0),
        low0 = 0xD2E7470EE14C6C93ull * c0;
    unsigned long long high1 = __umul64hi(0xCA5A826395121157ull, c2),
        low1 = 0xCA5A826395121157ull * c2;
    c0 = high1 ^ c1 ^ seed;
    c1 = low1;
    c2 = high0 ^ c3 ^ stream;
    c3 = low0;
    seed += 0x9E3779B97F4A7C15ull;    // the golden ratio
    stream += 0xBB67AE8584CAA73Bull;  // sqrt(3) - 1
  }
  out[0] = (unsigned int)c0, out[1] = (unsigned int)(c0 >> 32);
  out[2] = (unsigned int)c1, out[3] = (unsigned int)(c1 >> 32);
  out[4] = (unsigned int)c2, out[5] = (unsigned int)(c2 >> 32);
  out[6] = (unsigned int)c3, out[7] = (unsigned int)(c3 >> 32);
}

// Returns draw i of Generator(seed, stream) of minidl/random.py, after its counter was set to
// `counter`. A thread that needs eight neighbouring draws should call philox, which makes eight
// draws in one call.
__device__ __forceinline__ unsigned int random_bits(unsigned long long seed,
                                                    unsigned long long stream,
                                                    unsigned long long counter,
                                                    unsigned long long i) {
  unsigned int draws[8];
  philox(counter + i / 8, seed, stream, draws);
  return draws[i % 8];
}

// Returns a uniform number in [0, 1), made from the top 24 bits of a draw.
__device__ __forceinline__ float uniform(unsigned int bits) {
  return (float)(bits >> 8) * 5.9604644775390625e-08f;
}

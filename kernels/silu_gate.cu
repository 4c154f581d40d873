// The gate of a SwiGLU layer: out = silu(a) b, silu(a) = a / (1 + e^-a), in one pass. For models of
// your own: GPT's MLP in minidl.nn is GELU's.
//
//   silu_gate            out, a, b               n elements of type T
//                        reads 2, writes 1: 12 bytes an element in float; as array operations
//                        about 50
//   silu_gate_backward   ga, gb, gy, a, b        reads 3, writes 2: 20
//     s = 1 / (1 + e^-a)      gb = gy a s      ga = gy b (s + a s (1 - s))
//
// One rung: a thread per element has nothing to share with its neighbours.
// Source: Shazeer 2020 (arXiv 2002.05202).
// Wrapper: minidl/fused/silu_gate.py   Test: tests/fused/test_silu_gate.py
#include "common.cuh"

__device__ __forceinline__ float sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }
__device__ __forceinline__ double sigmoid(double a) { return 1.0 / (1.0 + exp(-a)); }

template <typename V> __device__ __forceinline__ V gate(V a, V b) { return a * sigmoid(a) * b; }

template <typename V> __device__ __forceinline__ void slopes(V a, V b, V gy, V& ga, V& gb) {
  V s = sigmoid(a);
  gb = gy * a * s;
  ga = gy * b * (s + a * s * (1 - s));
}

extern "C" __global__ void silu_gate(T* out, const T* a, const T* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = from_float<T>(gate(to_float(a[i]), to_float(b[i])));
}

extern "C" __global__ void silu_gate_backward(T* ga, T* gb, const T* gy, const T* a, const T* b,
                                              int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {  // guard
    auto x = to_float(a[i]), da = x, db = x;
    slopes(x, to_float(b[i]), to_float(gy[i]), da, db);
    ga[i] = from_float<T>(da);
    gb[i] = from_float<T>(db);
  }
}

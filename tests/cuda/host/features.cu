// Features of CUDA as programs use them, a kernel each; test_features.py has what each must compute.
#include <cuda_fp16.h>

// ---- shared memory ----

template <class V> struct Dynamic {  // a template cannot declare one name with two types
  __device__ inline operator V*() {
    extern __shared__ int __words[];
    return (V*)__words;
  }
  __device__ inline operator const V*() const {
    extern __shared__ int __words[];
    return (V*)__words;
  }
};
template <> struct Dynamic<double> {
  __device__ inline operator double*() {
    extern __shared__ double __numbers[];
    return (double*)__numbers;
  }
};
template <class V> __global__ void reversed(V* y, const V* x) {
  V* s = Dynamic<V>();
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
struct Stack {
  int n;
  __device__ int* items() { extern __shared__ int room[]; return room + blockDim.x; }
  __device__ void push(int v) { items()[atomicAdd(&n, 1)] = v; }
};
__global__ void pushes(int* y, const int* x) {
  __shared__ Stack stack;
  if (threadIdx.x == 0) stack.n = 0;
  __syncthreads();
  if (x[threadIdx.x] > 0) stack.push(x[threadIdx.x]);
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < stack.n; ++i) sum += stack.items()[i];
  y[threadIdx.x] = sum;
}
struct Cell { float value; short left, right; };
__global__ void struct_parts(float* y, const float* x, int n) {
  extern __shared__ __align__(16) unsigned char raw[];
  Cell* cells = (Cell*)raw;
  float2* pairs = (float2*)(cells + n);
  const int t = threadIdx.x;
  cells[t].value = x[t], cells[t].left = (t + n - 1) % n, cells[t].right = (t + 1) % n;
  pairs[t] = make_float2(x[t], 2 * x[t]);
  __syncthreads();
  const Cell& c = cells[t];
  y[t] = c.value + cells[c.left].value * pairs[c.right].y;
}
__global__ void volatile_tile(int* y) {
  static volatile __shared__ int a[64];
  volatile __shared__ int b[64];
  __shared__ static int c[2], d;
  a[threadIdx.x] = threadIdx.x, b[threadIdx.x] = 2 * threadIdx.x;
  if (threadIdx.x == 0) c[0] = 3, c[1] = 4, d = 5;
  __syncthreads();
  y[threadIdx.x] = a[63 - threadIdx.x] + b[threadIdx.x] + c[threadIdx.x % 2] + d;
}

// ---- memory of the file ----

static __constant__ float weights[3] = {0.25f, 0.5f, 0.25f};
__constant__ static int offsets[3] = {-1, 0, 1};
static __constant__ const int scale = 2;
static __device__ unsigned launches;
__device__ const float halves[2] = {0.5f, 1.5f};
__global__ void stencil(float* y, const float* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const int j = i + offsets[k];
      if (j >= 0 && j < n) sum += weights[k] * x[j];
    }
    y[i] = sum * scale + halves[i & 1];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) atomicInc(&launches, 0xffffffffu);
}

// ---- functions ----

typedef float (*Function)(float);
__device__ float square(float x) { return x * x; }
__device__ float negate(float x) { return -x; }
__device__ Function chosen[2] = {square, negate};
template <Function f> __device__ float applied_twice(float x) { return f(f(x)); }
__global__ void pointers_to_functions(float* y, const float* x) {
  Function f = chosen[threadIdx.x % 2];
  y[threadIdx.x] = f(x[threadIdx.x]) + applied_twice<square>(x[threadIdx.x]);
}
struct Shape {
  int sides;
  __host__ __device__ explicit Shape(int n) : sides(n) {}
  __device__ Shape operator+(const Shape& other) const { return Shape(sides + other.sides); }
  __device__ Shape& operator++() { ++sides; return *this; }
  __device__ bool operator<(const Shape& other) const { return sides < other.sides; }
  __device__ int operator[](int i) const { return sides * i; }
  __device__ explicit operator bool() const { return sides > 4; }
};
__global__ void operators(int* y) {
  Shape a(threadIdx.x), b = a + Shape(2);
  ++a;
  y[threadIdx.x] = a < b ? b[10] : a[10];
  if (b) y[threadIdx.x] += 1000;
}
template <int n> struct Power {
  static __device__ __forceinline__ float of(float x) { return x * Power<n - 1>::of(x); }
};
template <> struct Power<0> {
  static __device__ __forceinline__ float of(float) { return 1; }
};
template <typename V, int n = 3> __global__ void powers(V* y, const V* x) {
  auto lambda = [] __device__(V v) { return v + V(1); };
  y[threadIdx.x] = lambda(Power<n>::of(x[threadIdx.x]));
}
__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__global__ void recursion(int* y) { y[threadIdx.x] = fibonacci(threadIdx.x % 12); }

// ---- warps ----

__global__ void votes(unsigned* y, const int* x) {
  const unsigned lane = threadIdx.x & 31;
  const unsigned yes = __ballot_sync(0xffffffffu, x[threadIdx.x] > 0);
  const int before = __popc(yes & ((1u << lane) - 1)), leader = __ffs(yes) - 1;
  y[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], leader) * 100 + before;
  if (__all_sync(0xffffffffu, x[threadIdx.x] > -50) && __any_sync(0xffffffffu, x[threadIdx.x] > 5))
    y[threadIdx.x] += 10000;
}
__global__ void scan(int* y, const int* x) {
  __shared__ int of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int v = x[threadIdx.x];
  for (int d = 1; d < 32; d *= 2) {
    int other = __shfl_up_sync(0xffffffffu, v, d);
    if (lane >= d) v += other;
  }
  if (lane == 31) of_warp[warp] = v;
  __syncthreads();
  if (warp == 0) {
    int w = lane < blockDim.x / 32 ? of_warp[lane] : 0;
    for (int d = 1; d < 32; d *= 2) {
      int other = __shfl_up_sync(0xffffffffu, w, d);
      if (lane >= d) w += other;
    }
    of_warp[lane] = w;
  }
  __syncthreads();
  y[threadIdx.x] = v + (warp ? of_warp[warp - 1] : 0);
}
// ---- atomics ----

__global__ void all_atomics(int* y, unsigned* u, unsigned long long* w, float* f, const int* x) {
  const int v = x[threadIdx.x];
  atomicAdd(y, v), atomicSub(y + 1, v), atomicMax(y + 2, v), atomicMin(y + 3, v);
  atomicAnd(y + 4, ~(1 << v % 31)), atomicOr(y + 5, 1 << v % 31), atomicXor(y + 6, 1 << v % 31);
  atomicInc(u, 9), atomicDec(u + 1, 9), atomicAdd_block(u + 2, 2u), atomicMax_system(u + 3, v + 1u);
  atomicAdd(w, 1ull << 33), atomicMax(w + 1, (unsigned long long)v << 40), atomicAdd(f, 0.5f);
  int old = y[7], seen;
  do {
    seen = old;
    old = atomicCAS_block(y + 7, seen, seen + v);
  } while (old != seen);
}

// ---- types, time, output ----

__global__ void vectors(float4* y, const float4* x, const uchar4* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 v = __ldg(x + i);
  const uchar4 c = b[i];
  v.x += c.x, v.y -= c.y, v.z *= c.z, v.w = fmaf(v.w, c.w, 1.0f);
  y[i] = make_float4(v.w, v.z, v.y, v.x);
}
__global__ void half_pairs(__half2* y, const __half2* x, float a) {
  const __half2 v = x[threadIdx.x], factor = __float2half2_rn(a);
  y[threadIdx.x] = __hfma2(v, factor, __hmul2(v, v));
}
__global__ void timed(long long* y, clock_t* t) {
  const clock_t begin = clock();
  const long long begin64 = clock64();
  float sum = 0;
  for (int i = 0; i < 100; ++i) sum += sinf((float)i);
  y[threadIdx.x] = clock64() - begin64 > 0 && sum < 10;
  t[threadIdx.x] = clock() - begin > 0;
}
__global__ void printed(const int* x) {
  if (threadIdx.x == 0) printf("block %d: %d %.2f %s\n", blockIdx.x, x[0], 0.5 * x[1], "end");
}
struct __align__(8) Settings { float factor; int shift; };
__global__ void __launch_bounds__(128) settings(float* __restrict__ y, const float* __restrict__ x,
                                               const Settings s, int n) {
  const int stride = blockDim.x * gridDim.x;
  for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += stride)
    y[i] = x[(i + s.shift) % n] * s.factor;
}
__global__ void bits(unsigned* y, const unsigned* x) {
  const unsigned v = x[threadIdx.x];
  union { unsigned u; float f; unsigned char c[4]; } as;
  as.f = __uint2float_rn(v % 1000);
  y[threadIdx.x] = umin(__umul24(v, 3u), 1u << 30) ^ __brev(v) ^ as.u ^ as.c[3] ^ __clz((int)v);
}

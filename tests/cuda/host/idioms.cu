// Kernels as people write them for GPUs, one per idiom; the oracles are in test_idioms.py.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#ifndef __CUDACC_RTC__  // NVRTC has no C headers
#include <stdint.h>
#include <float.h>
#else
typedef long long int64_t;
#define INFINITY __int_as_float(0x7f800000)
#endif

namespace cg = cooperative_groups;

#define TILE 16
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define FLOAT4(value) (reinterpret_cast<float4*>(&(value))[0])
#define DEFINE_BINARY(NAME, EXPRESSION)                                                       \
  extern "C" __global__ void NAME(const float* x, const float* y, float* z, int n) {          \
    int i = threadIdx.x + blockDim.x * blockIdx.x;                                            \
    if (i >= n) return;                                                                       \
    float a = x[i], b = y[i];                                                                 \
    z[i] = EXPRESSION;                                                                        \
  }

DEFINE_BINARY(binary_mul, a* b)
DEFINE_BINARY(binary_hypot, sqrtf(a* a + b * b))

typedef float real;
using index_t = int64_t;
__constant__ float filter[5] = {1.f, 4.f, 6.f, 4.f, 1.f};
__device__ int calls = 0;

// forward declaration, defined below
extern "C" __global__ void saxpy_stride(real a, const real* __restrict__ x, real* __restrict__ y,
                                        index_t n);

__device__ __forceinline__ int global_id() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void saxpy_stride(real a, const real* __restrict__ x, real* __restrict__ y,
                                        index_t n) {
  const int stride = blockDim.x * gridDim.x;
  for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
    y[i] = a * x[i] + y[i];
}

extern "C" __global__ void helper_index(float* y, const float* x, int n) {
  int i = global_id();
  if (i < n) y[i] = 2.0f * x[i];
}

extern "C" __global__ void image_blur(const unsigned char* in, unsigned char* out, int width,
                                      int height) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (col < width && row < height) {
    int sum = 0, count = 0;
    for (int dr = -1; dr <= 1; ++dr)
      for (int dc = -1; dc <= 1; ++dc) {
        int r = row + dr, c = col + dc;
        if (r >= 0 && r < height && c >= 0 && c < width) sum += in[r * width + c], ++count;
      }
    out[row * width + col] = (unsigned char)(sum / count);
  }
}

extern "C" __global__ void volume_index(int* out, int nx, int ny, int nz) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
      z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x >= nx || y >= ny || z >= nz) return;
  out[(z * ny + y) * nx + x] = x + 100 * y + 10000 * z;
}

extern "C" __global__ void add_float4(float* a, float* b, float* c, int n) {
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    float4 u = FLOAT4(a[i]), v = FLOAT4(b[i]);
    FLOAT4(c[i]) = make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
  }
}

extern "C" __global__ void convolve(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float s = 0;
#pragma unroll
  for (int k = 0; k < 5; ++k) {
    int j = i + k - 2;
    if (j >= 0 && j < n) s += filter[k] * x[j];
  }
  y[i] = s;
}

template <typename T, int N>
__device__ T tree(T* s, int t) {
  for (int d = N / 2; d > 0; d >>= 1) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();
  }
  return s[0];
}

template <typename T, int N = 128>
__global__ void __launch_bounds__(N) sum_static(const T* x, T* partial, int n) {
  __shared__ T s[N];
  int t = threadIdx.x, i = blockIdx.x * N + t;
  s[t] = i < n ? x[i] : T(0);
  __syncthreads();
  T total = tree<T, N>(s, t);
  if (t == 0) partial[blockIdx.x] = total;
}

extern "C" __global__ void sum_dynamic(const float* x, float* partial, int n) {
  extern __shared__ __align__(16) float sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;
  float mine = i < n ? x[i] : 0;
  if (i + blockDim.x < n) mine += x[i + blockDim.x];
  sdata[tid] = mine;
  __syncthreads();
  for (unsigned int s = blockDim.x / 2; s > 32; s >>= 1) {
    if (tid < s) sdata[tid] = mine = mine + sdata[tid + s];
    __syncthreads();
  }
  if (tid < 32) {
    if (blockDim.x >= 64) mine += sdata[tid + 32];
    for (int offset = 16; offset > 0; offset /= 2)
      mine += __shfl_down_sync(0xffffffff, mine, offset);
  }
  if (tid == 0) partial[blockIdx.x] = mine;
}

extern "C" __global__ void sum_atomic(const float* x, double* total, int n) {
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  for (int mask = warpSize / 2; mask > 0; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask, 32);
  if ((threadIdx.x & 31) == 0) atomicAdd(total, (double)v);
}

extern "C" __global__ void histogram(const unsigned char* data, unsigned int* bins, int n) {
  __shared__ unsigned int local[256];
  for (int b = threadIdx.x; b < 256; b += blockDim.x) local[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    atomicAdd(&local[data[i]], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 256; b += blockDim.x) atomicAdd(bins + b, local[b]);
}

extern "C" __global__ void histogram_global(const int* data, int* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[data[i]], 1);
}

extern "C" __global__ void transpose(float* out, const float* in, int width, int height) {
  __shared__ float tile[32][32 + 1];  // padding: no bank conflicts
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void scan(const int* in, int* out, int n) {  // Hillis and Steele, two buffers
  extern __shared__ int temp[];
  int t = threadIdx.x, from = 0, to = 1;
  temp[t] = t < n ? in[t] : 0;
  __syncthreads();
  for (int offset = 1; offset < blockDim.x; offset *= 2) {
    temp[to * blockDim.x + t] = temp[from * blockDim.x + t]
        + (t >= offset ? temp[from * blockDim.x + t - offset] : 0);
    to = 1 - to, from = 1 - from;
    __syncthreads();
  }
  if (t < n) out[t] = temp[from * blockDim.x + t];
}

extern "C" __global__ void scan_warps(const int* in, int* out, int n) {
  __shared__ int sums[32];
  int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize,
      v = threadIdx.x < n ? in[threadIdx.x] : 0;
  for (int d = 1; d < 32; d <<= 1) {
    int u = __shfl_up_sync(0xffffffffu, v, d);
    if (lane >= d) v += u;
  }
  if (lane == 31) sums[warp] = v;
  __syncthreads();
  if (warp == 0) {
    int s = lane < blockDim.x / 32 ? sums[lane] : 0;
    for (int d = 1; d < 32; d <<= 1) {
      int u = __shfl_up_sync(0xffffffffu, s, d);
      if (lane >= d) s += u;
    }
    sums[lane] = s;
  }
  __syncthreads();
  if (warp > 0) v += sums[warp - 1];
  if (threadIdx.x < n) out[threadIdx.x] = v;
}

extern "C" __global__ void matmul_tiled(const float* __restrict__ A, const float* __restrict__ B,
                                        float* C, int M, int N, int K) {
  __shared__ float As[TILE][TILE], Bs[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float acc = 0.0f;
  for (int t = 0; t < CEIL_DIV(K, TILE); ++t) {
    As[threadIdx.y][threadIdx.x] = row < M
        && t * TILE + threadIdx.x < K ? A[row * K + t * TILE + threadIdx.x] : 0.0f;
    Bs[threadIdx.y][threadIdx.x] = col < N
        && t * TILE + threadIdx.y < K ? B[(t * TILE + threadIdx.y) * N + col] : 0.0f;
    __syncthreads();
    for (int k = 0; k < TILE; ++k) acc += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = acc;
}

extern "C" __global__ void softmax_cg(const float* in, float* out, int rows, int cols) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (row >= rows) return;
  const float* x = in + row * cols;
  float top = -INFINITY;
  for (int i = warp.thread_rank(); i < cols; i += warp.size()) top = fmaxf(top, x[i]);
  top = cg::reduce(warp, top, cg::greater<float>{});
  float sum = 0;
  for (int i = warp.thread_rank(); i < cols; i += warp.size()) sum += expf(x[i] - top);
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  for (int i = warp.thread_rank(); i < cols; i += warp.size())
    out[row * cols + i] = expf(x[i] - top) / sum;
}

extern "C" __global__ void votes(const int* x, int* out) {
  int t = threadIdx.x;
  unsigned ballot = __ballot_sync(0xffffffff, x[t] > 0);
  int any = __any_sync(0xffffffff, x[t] > 100), all = __all_sync(0xffffffff, x[t] > -100);
  int count = __syncthreads_count(x[t] > 0), both = __syncthreads_and(x[t] > -100),
      either = __syncthreads_or(x[t] > 100);
  out[t] = __popc(ballot) + 100 * any + 200 * all + 1000 * count + 1000000 * both +
           2000000 * either;
}

// Two halves of a warp shuffle apart, each under its own mask.
extern "C" __global__ void half_warps(int* out) {
  int lane = threadIdx.x, v = lane;
  if (lane < 16)
    v = __shfl_sync(0x0000ffffu, v, 3);
  else
    v = __shfl_sync(0xffff0000u, v, 20);
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  out[lane] = v + 100 * tile.shfl(lane, 1);
}

// Shuffles within segments of `width` lanes: at a segment's end a lane reads itself.
extern "C" __global__ void segments(int* out, int width) {
  int lane = threadIdx.x % 32;
  out[threadIdx.x] = __shfl_up_sync(~0u, lane, 3, width) +
                     100 * __shfl_down_sync(~0u, lane, 2, width) +
                     10000 * __shfl_sync(~0u, lane, 5, width) +
                     1000000 * __shfl_xor_sync(~0u, lane, 1, width);
}

// The last block to finish adds up what all have written (CUDA sample threadFenceReduction).
extern "C" __global__ void last_block(const float* x, float* partial, unsigned int* ticket,
                                      float* total) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    last = atomicInc(ticket, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (int b = 0; b < gridDim.x; ++b) s += partial[b];
    *total = s;
  }
}

// A lock, taken by one thread of each warp in turn.
extern "C" __global__ void spin_lock(int* lock, int* counter) {
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(lock, 0, 1) != 0)
      ;
    *counter = *counter + 1;
    __threadfence();
    atomicExch(lock, 0);
  }
}

struct Square {
  __device__ float operator()(float x) const { return x * x; }
};
template <typename T, class Op> __global__ void map(T* y, const T* x, unsigned int n) {
  Op op;
  for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    y[i] = op(x[i]);
  }
}

extern "C" __global__ void pointers(float* const* tables, const int* sizes, float scale) {
  float* x = tables[blockIdx.y];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < sizes[blockIdx.y]) x[i] *= scale;
}

#if __CUDA_ARCH__ >= 700
extern "C" __global__ void needs_volta(int* out) {
  out[threadIdx.x] = __shfl_sync(~0u, (int)threadIdx.x, 5);
}
#else
#error too old
#endif

// Whole warps return before a barrier, which does not wait for them; the others count themselves.
extern "C" __global__ void warps_leave(int* y, int working) {
  __shared__ int s[128];
  const int t = threadIdx.x;
  if (t >= 32 * working) return;
  s[t] = t;
  __syncthreads();
  const int other = s[32 * working - 1 - t];
  if (t / 32 == 1) return;
  const int together = __syncthreads_count(t % 2), all = __syncthreads_and(1);
  y[t] = 1000 * all + 100 * (together / 16) + other;
}

// Kernels with one bug each, which the check form must find (test_check_planted.py), at // BUG.
#define TILE 16

extern "C" __global__ void guard_off_by_one(float* out, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) out[i] = 2.0f * x[i];  // BUG: < n
}

extern "C" __global__ void no_guard(float* out, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = 2.0f * x[i];  // BUG
}

extern "C" __global__ void negative_index(float* out, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] - x[i - 1];  // BUG: i == 0
}

extern "C" __global__ void wrong_stride(float* out, const float* x, int rows, int cols) {
  int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (col < cols) out[row * rows + col] = x[row * cols + col];  // BUG: row * cols
}

extern "C" __global__ void grid_stride_too_small(float* out, const float* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x)  // BUG
    out[i] = x[i] + i + gridDim.x * out[i];
}

extern "C" __global__ void missing_barrier(float* out, const float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  // BUG: __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void missing_second_barrier(float* C, const float* A, const float* B, int K,
                                                  int N) {
  __shared__ float As[TILE][TILE], Bs[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x; float sum = 0;
  for (int t = 0; t < K / TILE; ++t) {
    As[threadIdx.y][threadIdx.x] = A[row * K + t * TILE + threadIdx.x];
    Bs[threadIdx.y][threadIdx.x] = B[(t * TILE + threadIdx.y) * N + col];
    __syncthreads();
    for (int k = 0; k < TILE; ++k) sum += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    // BUG: __syncthreads(); before the next tile is loaded
  }
  C[row * N + col] = sum;
}

extern "C" __global__ void divergent_barrier(float* out, const float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 48) {
    __syncthreads();  // BUG: not all threads come here
    s[threadIdx.x] += 1.0f;
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void return_before_barrier(float* out, const float* x, int n) {
  __shared__ float s[64];
  if (threadIdx.x >= n) return;  // BUG: the others wait
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[n - 1 - threadIdx.x];
}

extern "C" __global__ void wrong_mask(float* out, const float* x) {
  float v = x[threadIdx.x];
  v += __shfl_down_sync(0x0000ffffu, v, 8);  // BUG: lanes 16 to 31 call, too
  out[threadIdx.x] = v;
}

extern "C" __global__ void mask_of_lanes_elsewhere(float* out, const float* x) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 16) v += __shfl_xor_sync(0xffffffffu, v, 8);  // BUG: the others wait below
  __syncthreads();
  out[threadIdx.x] = v;
}

extern "C" __global__ void shuffle_from_exited_lane(float* out, const float* x, int n) {
  if (threadIdx.x >= n) return;
  out[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 16);  // BUG: one lane returned
}

extern "C" __global__ void misaligned_float4(float* out, const float* x, int n) {
  int i = 4 * threadIdx.x;
  if (i + 4 < n) {
    float4 v = *(const float4*)(x + i + 1);  // BUG: i + 1 is no multiple of 4
    out[i] = v.x + v.y + v.z + v.w;
  }
}

extern "C" __global__ void vector_past_the_end(float* out, const float* x, int n) {
  int i = 4 * threadIdx.x;
  if (i < n) {  // BUG: n must be a multiple of 4
    float4 v = ((const float4*)x)[threadIdx.x];
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
  }
}

extern "C" __global__ void unwritten_shared(float* out, const float* x, int n) {
  __shared__ float s[64];
  if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];  // BUG: the rest is never set
  __syncthreads();
  for (int d = 32; d > 0; d /= 2) {
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[0] = s[0];
}

extern "C" __global__ void race_in_reduction(float* out, const float* x) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  for (int d = blockDim.x / 2; d > 0; d /= 2) {
    __syncthreads();
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
  }
  out[threadIdx.x] = s[0];  // BUG: thread 0 may still be adding
}

extern "C" __global__ void missing_syncwarp(float* out, const float* x) {
  __shared__ volatile float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  for (int d = 16; d > 0; d /= 2)
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];  // BUG: __syncwarp()
  if (threadIdx.x == 0) out[0] = s[0];
}

extern "C" __global__ void histogram_without_atomic(int* bins, const int* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) bins[data[i]]++;  // BUG: atomicAdd
}

extern "C" __global__ void plain_beside_atomic(int* total, const int* x, int n) {
  if (threadIdx.x == 0) *total = 0;  // BUG: no barrier before the others add
  atomicAdd(total, x[threadIdx.x]);
}

extern "C" __global__ void double_write(float* out, const float* x, int n) {
  int i = blockIdx.x * (blockDim.x - 1) + threadIdx.x;  // BUG: blocks overlap by one
  if (i < n) out[i] = x[i] + blockIdx.x;
}

extern "C" __global__ void stale_read(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i + 1 < n) x[i] = x[i + 1];  // BUG: a neighbour may have changed it
}

extern "C" __global__ void stale_read_of_block(float* sums, const float* x) {
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = x[blockIdx.x];
    if (blockIdx.x > 0) sums[blockIdx.x] += sums[blockIdx.x - 1];  // BUG: is the other block ready?
  }
}

extern "C" __global__ void shared_index_overflow(float* out, const float* x) {
  __shared__ float s[64];
  s[threadIdx.x + 1] = x[threadIdx.x];  // BUG: 64 threads, last index 64
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}

__device__ void fill(float* p, int n) {
  for (int k = 0; k <= n; ++k) p[k] = k;  // BUG: <
}
extern "C" __global__ void shared_overflow_by_pointer(float* out) {
  __shared__ float s[48];
  if (threadIdx.x == 0) fill(s, 48);
  __syncthreads();
  if (threadIdx.x < 48) out[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void dynamic_shared_too_small(float* out, const float* x) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void write_to_const(const float* x, float* out) {
  ((float*)x)[threadIdx.x] = 0.0f;  // BUG
  out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void division(int* out, const int* x, const int* y) {
  out[threadIdx.x] = x[threadIdx.x] / y[threadIdx.x];  // BUG: y may be 0
}

extern "C" __global__ void adds_to_an_output(float* out, const float* x) {
  out[threadIdx.x] += x[threadIdx.x];  // BUG: out begins with garbage
}

extern "C" __global__ void order_matters(int* out, int* next, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int place = atomicAdd(next, 1);
  if (i < n) out[place] = i;  // BUG: which thread comes first?
}

extern "C" __global__ void null_pointer(float* out, const float* x) {
  out[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void wild_index(float* out, const float* x, const int* index) {
  out[threadIdx.x] = x[(long long)index[threadIdx.x] * 1000000007];
}

extern "C" __global__ void local_array(float* out, const float* x, int n) {
  float v[4];
  for (int k = 0; k < n; ++k) v[k] = x[k];  // BUG when n > 4
  out[threadIdx.x] = v[0] + v[threadIdx.x & 3];
}

extern "C" __global__ void same_value(int* found, const int* x) {  // suspicious, not wrong
  if (x[threadIdx.x] > 3) *found = 1;
}

extern "C" __global__ void plain_then_atomic(int* total, const int* x) {
  if (threadIdx.x == 0)
    *total = 0;  // BUG: the others may have added already
  else
    atomicAdd(total, x[threadIdx.x]);
}

extern "C" __global__ void shared_of_another_block(float* out, const float* x) {
  __shared__ float s[32];
  if (blockIdx.x == 0) s[threadIdx.x] = x[threadIdx.x];  // BUG: s is each block's own
  __syncthreads();
  out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void read_elsewhere_then_changed(float* x, float* out) {
  int i = threadIdx.x;
  if (blockIdx.x == 0) out[i] = x[i];
  if (blockIdx.x == 1) x[i] += 1.0f;  // BUG: block 0 reads it, before or after
}

extern "C" __global__ void read_by_two_then_written(float* out, float* x) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[0];
  __syncthreads();
  out[threadIdx.x] = first;
  if (threadIdx.x == 32) x[1] = 0.0f;
  __syncthreads();
  float v = first;  // all threads read
  if (threadIdx.x == 63) first = v + 1.0f;  // BUG: others may not have read it yet
  out[threadIdx.x] += v;
}

extern "C" __global__ void local_too_large(float* out, int n) {
  float v[180000];  // BUG: 720 KB in every thread
  for (int k = 0; k < n; ++k) v[k] = k + threadIdx.x;
  out[threadIdx.x] = v[n / 2];
}

extern "C" __global__ void local_array_before(float* out, const float* x, int n) {
  float v[4] = {};
  for (int k = n; k < 4; ++k) v[k] = x[k + 2];  // BUG when n < 0
  out[threadIdx.x] = v[0] + v[threadIdx.x & 3];
}

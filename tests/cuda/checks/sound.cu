// Kernels without a bug: the check form must find nothing in them, and count their traffic
// (test_check.py).
#define TILE 32
#define RADIUS 3

extern "C" __global__ void saxpy(float* y, const float* x, float a, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    y[i] = a * x[i] + y[i];
}

extern "C" __global__ void reduce(float* sums, const float* x, int n) {
  extern __shared__ float s[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d /= 2) {
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = s[0];
}

// The last five steps within a warp, each ordered by __syncwarp() alone.
extern "C" __global__ void reduce_syncwarp(float* sum, const float* x) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    float v = s[t] + s[t + 32];
    s[t] = v;
    __syncwarp();
    for (int d = 16; d > 0; d /= 2) {
      float other = s[t ^ d];
      __syncwarp();
      v += other;
      s[t] = v;
      __syncwarp();
    }
    if (t == 0) *sum = v;
  }
}

extern "C" __global__ void transpose(float* out, const float* in, int rows, int cols) {
  __shared__ float tile[TILE][TILE + 1];
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  if (x < cols && y < rows) tile[threadIdx.y][threadIdx.x] = in[y * cols + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
  if (x < rows && y < cols) out[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void stencil(float* out, const float* in, int n) {
  __shared__ float s[128 + 2 * RADIUS];
  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x + RADIUS;
  s[t] = i < n ? in[i] : 0.0f;
  if (threadIdx.x < RADIUS) {  // the halo
    s[t - RADIUS] = i >= RADIUS ? in[i - RADIUS] : 0.0f;
    s[t + blockDim.x] = i + blockDim.x < n ? in[i + blockDim.x] : 0.0f;
  }
  __syncthreads();
  float sum = 0;
  for (int k = -RADIUS; k <= RADIUS; ++k) sum += s[t + k];
  if (i < n) out[i] = sum;
}

// One pass over the row: a running maximum m and the sum of exp(x - m), joined at the end by a
// tree.
extern "C" __global__ void softmax_online(float* out, const float* in, int cols) {
  __shared__ float ms[64], ds[64];
  const float* x = in + blockIdx.x * cols;
  int t = threadIdx.x;
  float m = -INFINITY, d = 0;
  for (int c = t; c < cols; c += blockDim.x) {
    float top = fmaxf(m, x[c]);
    d = d * expf(m - top) + expf(x[c] - top);
    m = top;
  }
  ms[t] = m, ds[t] = d;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (t < step && ms[t + step] > -INFINITY) {
      float top = fmaxf(ms[t], ms[t + step]);
      ds[t] = ds[t] * expf(ms[t] - top) + ds[t + step] * expf(ms[t + step] - top);
      ms[t] = top;
    }
    __syncthreads();
  }
  for (int c = t; c < cols; c += blockDim.x)
    out[blockIdx.x * cols + c] = expf(x[c] - ms[0]) / ds[0];
}

extern "C" __global__ void layer_norm(float* y, const float* in, const float* w, const float* b,
                                      int cols) {
  __shared__ float partial[2][8];
  const float* x = in + blockIdx.x * cols;
  float sum = 0, squares = 0;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += x[c], squares += x[c] * x[c];
  for (int d = 16; d > 0; d /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, d);
    squares += __shfl_xor_sync(0xffffffffu, squares, d);
  }
  int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) partial[0][warp] = sum, partial[1][warp] = squares;
  __syncthreads();
  sum = squares = 0;
  for (int k = 0; k < blockDim.x / 32; ++k) sum += partial[0][k], squares += partial[1][k];
  float mean = sum / cols, rstd = rsqrtf(squares / cols - mean * mean + 1e-5f);
  for (int c = threadIdx.x; c < cols; c += blockDim.x)
    y[blockIdx.x * cols + c] = (x[c] - mean) * rstd * w[c] + b[c];
}

extern "C" __global__ void histogram(int* bins, const int* data, int n) {
  __shared__ int local[16];
  if (threadIdx.x < 16) local[threadIdx.x] = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&local[data[i]], 1);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

// sound, but rounded in any order
extern "C" __global__ void float_sum(float* total, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(total, x[i]);
}

// Bytes of floats: smaller accesses than an element, by different threads.
extern "C" __global__ void swap_bytes(unsigned char* out, const float* in) {
  const unsigned char* bytes = (const unsigned char*)in;
  out[threadIdx.x] = bytes[threadIdx.x ^ 3];
}

extern "C" __global__ void copy_float4(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (4 * i < n) ((float4*)out)[i] = ((const float4*)in)[i];
}

template <typename A, typename B> struct Pair { A first; B second; };
#define SIZE 32
extern "C" __global__ void two_shared(float* out, const float* in) {
  __shared__ float a[(SIZE > 16 ? SIZE : 16)], b[1][SIZE];
  __shared__ Pair<int, float> c;
  a[threadIdx.x] = in[threadIdx.x], b[0][threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x == 0) c.second = 1.0f;
  __syncthreads();
  out[threadIdx.x] = a[threadIdx.x] + b[0][SIZE - 1 - threadIdx.x] + c.second;
}

// int8 quantisation, symmetric: q = round(x / scale), scale = max |x| / 127. There is one scale for
// each row (channel), or one scale for all rows. No layer of minidl.nn calls these kernels.
// minidl/comm/codec.py has the same formula in NumPy, with a scale for every 1,024 elements. It
// does not use these kernels, because the package comm must not import kernels.
//
//   x (rows, cols) of type T, q (rows, cols) int8. Bytes for each element, in float:
//   absmax*      top (rows) = max |x| of each row         reads 4 bytes
//   quantize*    q = round(x / scale)                     reads 4 bytes, writes 1 byte
//   dequantize*  x = q scale                              reads 1 byte, writes 4 bytes
//   step: 1 if each row has its own scale, 0 if there is one scale for all rows
//
// round() rounds to the nearest integer, and ties to even. If the scale is 0 (a row of zeros), q is
// 0.
//
// Rungs: in the first rung a thread takes a row. cpu/quantize.cu does the same in vectors, for a
// CPU. In _warps a warp takes a row, and neighbouring lanes read neighbouring elements. In _packs
// each lane reads 16 elements at a time. Expected share of a copy's bandwidth on a GPU. It is
// computed, not measured (gelu.cu shows how). In absmax_warps each lane reads 4 bytes, so 8 KB are
// in flight in an SM. An H100 needs 15 KB, so it reaches 50 to 60%. quantize_warps and
// dequantize_warps reach 40%, because a lane writes or reads one byte of q. So a request of a warp
// has only 32 bytes. In _packs each lane reads 64 bytes (32 bytes in half), which gives 85% if the
// row length is a multiple of 512. In rows of 768 elements one lane in four has no work, which
// gives 75%. If the row length is not a multiple of 16, _packs reads element by element, and _warps
// is faster.
// Source: Jacob et al. 2018 (arXiv 1712.05877).   Wrapper: minidl/ops/extra/quantize.py
// Test: tests/ops/extra/test_quantize.py
#include "quantize.cuh"

extern "C" __global__ void absmax(float* top, const T* x, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* r = x + (long long)row * cols;
    int most = 0;
    for (int col = 0; col < cols; ++col) most =
        max(most, magnitude(to_float(r[col])));
    top[row] = __int_as_float(most);
  }
}

extern "C" __global__ void quantize(signed char* q, const T* x, const float* scale, int rows,
                                    int cols, int step) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    long long at = (long long)row * cols;
    float s = scale[row * step];
    for (int col = 0; col < cols; ++col) q[at + col] = to_int8(to_float(x[at + col]), s);
  }
}

extern "C" __global__ void dequantize(T* x, const signed char* q, const float* scale, int rows,
                                      int cols, int step) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    long long at = (long long)row * cols;
    float s = scale[row * step];
    for (int col = 0; col < cols; ++col) x[at + col] = from_float<T>((float)q[at + col] * s);
  }
}

// ---- one warp for each row; a block has a multiple of 32 threads ----

extern "C" __global__ void absmax_warps(float* top, const T* x, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // guard: whole warps return
  const T* r = x + (long long)row * cols;
  int most = 0;
  for (int col = lane; col < cols; col += 32) most = max(most, magnitude(to_float(r[col])));
  most = warp_max(most);
  if (lane == 0) top[row] = __int_as_float(most);
}

extern "C" __global__ void quantize_warps(signed char* q, const T* x, const float* scale, int rows,
                                          int cols, int step) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // guard
  long long at = (long long)row * cols;
  float s = scale[row * step];
  for (int col = threadIdx.x % 32; col < cols; col += 32)
    q[at + col] = to_int8(to_float(x[at + col]), s);
}

extern "C" __global__ void dequantize_warps(T* x, const signed char* q, const float* scale,
                                            int rows, int cols, int step) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // guard
  long long at = (long long)row * cols;
  float s = scale[row * step];
  for (int col = threadIdx.x % 32; col < cols; col += 32)
    x[at + col] = from_float<T>((float)q[at + col] * s);
}

// ---- a warp takes a row, and a lane 16 elements at a time: 16 bytes of int8 in one access ----

extern "C" __global__ void absmax_packs(float* top, const T* x, int rows, int cols) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // guard: whole warps return
  const T* r = x + (long long)row * cols;
  const bool whole = packs(r);
  int most = 0;
  for (int col = 16 * lane; col < cols; col += 16 * 32) {
    float v[16];
    take<16>(v, r, col, cols, whole);  // zeros after the end
#pragma unroll
    for (int k = 0; k < 16; ++k) most = max(most, magnitude(v[k]));
  }
  most = warp_max(most);
  if (lane == 0) top[row] = __int_as_float(most);
}

extern "C" __global__ void quantize_packs(signed char* q, const T* x, const float* scale, int rows,
                                          int cols, int step) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // guard
  const T* r = x + (long long)row * cols;
  signed char* qr = q + (long long)row * cols;
  const bool whole = packs(r) && packs(qr);
  const float s = scale[row * step];
  for (int col = 16 * (threadIdx.x % 32); col < cols; col += 16 * 32) {
    float v[16];
    Pack<signed char> pack;
    take<16>(v, r, col, cols, whole);
#pragma unroll
    for (int k = 0; k < 16; ++k) pack.at[k] = to_int8(v[k], s);
    store_pack(qr + col, pack, cols - col, whole);
  }
}

extern "C" __global__ void dequantize_packs(T* x, const signed char* q, const float* scale,
                                            int rows, int cols, int step) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // guard
  T* r = x + (long long)row * cols;
  const signed char* qr = q + (long long)row * cols;
  const bool whole = packs(r) && packs(qr);
  const float s = scale[row * step];
  for (int col = 16 * (threadIdx.x % 32); col < cols; col += 16 * 32) {
    const Pack<signed char> pack = load_pack(qr + col, cols - col, whole);
    float v[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) v[k] = (float)pack.at[k] * s;
    put<16>(r, v, col, cols, whole);
  }
}

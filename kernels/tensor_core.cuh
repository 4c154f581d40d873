// Functions for a GPU's tensor cores. In one instruction a warp multiplies 16 x 16 by 16 x 8
// halves, which are 2048 multiply-adds. In an ordinary instruction the 32 lanes of a warp do 32
// multiply-adds. Sums are in float.
//
//   mma(c, a, b)     c += a b     c 16 x 8 float, a 16 x 16 half, b 16 x 8 half
//
// No lane holds a whole matrix. Each lane holds a few elements in registers, which are called its
// fragment. Lane 4 g + t, with g from 0 to 7 and t from 0 to 3, holds these elements. A register
// has two halves or one float:
//
//        a[0] row g,     columns 2t, 2t+1        b[0] rows 2t, 2t+1,   column g
//        a[1] row g + 8, columns 2t, 2t+1        b[1] rows 2t+8, 2t+9, column g
//        a[2] row g,     columns 2t+8, 2t+9      c[0], c[1] row g,     columns 2t, 2t+1
//        a[3] row g + 8, columns 2t+8, 2t+9      c[2], c[3] row g + 8, columns 2t, 2t+1
//
// So `c`, rounded to half, already has the layout that the next product needs for its left matrix
// `a`. Two matrices `c` of 8 columns, side by side, form one matrix `a`.
//
//   load_a(a, m, pitch)              loads `a` from 16 rows of 16 halves in shared memory
//   load_b(b, m, pitch)              loads two matrices `b`, 16 x 8 each, from 16 rows of 16 halves
//   load_b_transposed(b, m, pitch)   the same from the transposed matrix: a row is a column of `b`
//   Each of these three is one instruction, ldmatrix. It loads 4 squares of 8 x 8 halves. Lane l
//   gives the address of row l % 8 of square l / 8. The address must be a multiple of 16 bytes.
//
// On a CPU the lanes exchange their fragments by shuffles (host/tensor_core.h). The results can
// differ from a GPU's only by the order of sums, because NVIDIA does not specify this order.
//
// Source: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
// Test: tests/ops/test_matmul_kernel.py, tests/cuda/host/test_tensor_core.py
#pragma once
#include "common.cuh"

#ifdef MINIDL_HOST
#include "host/tensor_core.h"
#else
__device__ __forceinline__ void mma(float* c, const unsigned int* a, const unsigned int* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void load_squares(unsigned int* out, const __half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"((unsigned int)__cvta_generic_to_shared(row)));
}

__device__ __forceinline__ void load_squares_transposed(unsigned int* out, const __half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"((unsigned int)__cvta_generic_to_shared(row)));
}
#endif

__device__ __forceinline__ void load_a(unsigned int* a, const __half* m, int pitch) {
  const int lane = threadIdx.x % 32;
  load_squares(a, m + lane % 16 * pitch + lane / 16 * 8);
}

__device__ __forceinline__ void load_b(unsigned int* b, const __half* m, int pitch) {
  const int lane = threadIdx.x % 32;
  load_squares_transposed(b, m + lane % 16 * pitch + lane / 16 * 8);
}

__device__ __forceinline__ void load_b_transposed(unsigned int* b, const __half* m, int pitch) {
  const int lane = threadIdx.x % 32;
  load_squares(b, m + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}

// Converts two floats to half, and returns them in one register, with the first in the low bits.
__device__ __forceinline__ unsigned int pair_of(float x, float y) {
  return (unsigned int)__half_as_ushort(__float2half(x))
      | (unsigned int)__half_as_ushort(__float2half(y)) << 16;
}

#pragma once

// 1 if x is inf or nan: neither is below infinity.
__device__ __forceinline__ int bad_number(float x) { return !(fabsf(x) < INFINITY); }
__device__ __forceinline__ int bad_number(double x) { return !(fabs(x) < INFINITY); }

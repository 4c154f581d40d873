#pragma once

// Returns 1 if x is inf or nan, else 0: `< infinity` is false for both.
__device__ __forceinline__ int bad_number(float x) { return !(fabsf(x) < INFINITY); }
__device__ __forceinline__ int bad_number(double x) { return !(fabs(x) < INFINITY); }

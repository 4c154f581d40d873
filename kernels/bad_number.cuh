#pragma once

// Returns 1 if x is inf or nan, else 0. The test `|x| < infinity` is false for inf and for nan.
__device__ __forceinline__ int bad_number(float x) { return !(fabsf(x) < INFINITY); }
__device__ __forceinline__ int bad_number(double x) { return !(fabs(x) < INFINITY); }

// Names from C's headers, for a GPU. NVRTC, the compiler in CuPy, has no <math.h>, <stdint.h> or
// <float.h>. So minidl puts this file before every kernel file for a GPU. For a CPU, minidl puts
// host/cuda_host.h before the kernel file, and cuda_host.h defines the same names. So a kernel file
// does not have to include C's headers. NVIDIA's headers come first, because they may define some
// of these names.
// Test: tests/cuda/test_nvrtc.py
#pragma once
#ifndef MINIDL_HOST  // cuda_host.h defines the same names

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef long long intptr_t;
typedef unsigned char uint8_t, uchar;
typedef unsigned short uint16_t, ushort;
typedef unsigned int uint32_t, uint;
typedef unsigned long ulong;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#define HUGE_VALF INFINITY
#define CUDART_INF_F INFINITY
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ll)
#define CUDART_NAN_F NAN
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define M_SQRT2 1.41421356237309504880
#define M_2_SQRTPI 1.12837916709551257390

#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_EPSILON 2.2204460492503131e-16
#endif
#ifndef INT_MAX
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#endif
#ifndef NULL
#define NULL 0
#endif
#endif

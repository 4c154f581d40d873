// CUDA's built-in names for a C++ compiler: the names that NVRTC gives a kernel without any
// include.
//
// The loader (minidl/cuda/host/cpu.py) puts this header before a kernel's text. The header includes
// no system headers, because the compiler needs more time for them than for the kernel. NVRTC has
// no system headers either.
//
// Every kernel gets four extra parameters before its own: (threadIdx, blockIdx, blockDim, gridDim).
// These parameters hide global variables with the same names, which device functions use.
// Parameters are faster than the global variables, because they can stay in registers.
#pragma once

#define MINIDL_HOST 1
#define MINIDL_BUILTINS uint3 threadIdx, uint3 blockIdx, dim3 blockDim, dim3 gridDim

#include "vector_types.h"
#include "runtime.h"

#define __global__ inline __attribute__((always_inline))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __restrict __restrict__
#define __align__(n) __attribute__((aligned(n)))
// A CPU thread runs one block at a time. So the block's shared memory can be thread-local memory of
// the CPU thread.
#define __shared__ static __thread

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __INT16_TYPE__ int16_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define NAN __builtin_nanf("")
#define CUDART_INF_F __builtin_inff()
#define CUDART_INF __builtin_inf()
#define CUDART_NAN_F __builtin_nanf("")
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define DBL_MAX __DBL_MAX__
#define DBL_EPSILON __DBL_EPSILON__
#define INT_MAX __INT_MAX__
#define INT_MIN (-__INT_MAX__ - 1)
#define UINT_MAX (2u * __INT_MAX__ + 1)
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define M_SQRT2 1.41421356237309504880
#define M_2_SQRTPI 1.12837916709551257390
#ifndef NULL
#define NULL __null
#endif

#include "float_math.h"
#include "more_math.h"
#include "half.h"
#include "bfloat16.h"
#include "atomics.h"
#include "warp.h"
#include "words.h"
#include "variables.h"
#ifdef MINIDL_CHECK
#include "check.h"
#endif

extern "C" int printf(const char*, ...);
#define assert(condition) ((condition) \
                           ? (void)0 : minidl_fail_assert(#condition, __FILE__, __LINE__))

#define warpSize 32
#ifndef __clang__
#define __builtin_assume(...) ((void)0)
#endif

MINIDL_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MINIDL_INLINE void __threadfence_block() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
MINIDL_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Loads and stores with a cache hint. A CPU ignores the hint.
template <class T> MINIDL_INLINE T __ldg(const T* p) { return *p; }
template <class T> MINIDL_INLINE T __ldcs(const T* p) { return *p; }
template <class T> MINIDL_INLINE T __ldcg(const T* p) { return *p; }
template <class T> MINIDL_INLINE T __ldca(const T* p) { return *p; }
template <class T> MINIDL_INLINE T __ldlu(const T* p) { return *p; }
template <class T> MINIDL_INLINE T __ldcv(const T* p) { return *p; }
template <class T> MINIDL_INLINE void __stwb(T* p, T v) { *p = v; }
template <class T> MINIDL_INLINE void __stcs(T* p, T v) { *p = v; }
template <class T> MINIDL_INLINE void __stcg(T* p, T v) { *p = v; }
template <class T> MINIDL_INLINE void __stwt(T* p, T v) { *p = v; }

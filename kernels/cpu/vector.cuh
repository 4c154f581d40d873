// Vec is a vector register of floats, for kernels that run only on CPUs. It uses the vector
// extension of GCC and clang. Its operators `+ - * / <` work lane by lane.
// Test: tests/ops/test_linear_kernel.py, test_attention.py
#pragma once
#include "loops.cuh"

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
#define UNROLL PRAGMA(GCC unroll 16)

typedef float Vec __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

constexpr int LANES = VEC_BYTES / 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

// Forces x into a register. Without it, if x is used at most four times, g++ reads x from memory
// for each use. A core that already loads 64 bytes in each cycle has no time for these reads.
#if defined(__x86_64__)
#define IN_REGISTER(x) __asm("" : "+v"(x))
#elif defined(__aarch64__)
#define IN_REGISTER(x) __asm("" : "+w"(x))
#else
#define IN_REGISTER(x)
#endif

// READ_AGAIN() is the opposite of IN_REGISTER: after it, the compiler must load a number from
// memory again.
#define READ_AGAIN() __asm("" : : : "memory")

__forceinline__ Vec load(const float* p) { return *(const Vec*)p; }
__forceinline__ void store(float* p, Vec x) { *(Vec*)p = x; }

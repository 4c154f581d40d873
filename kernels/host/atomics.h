// Atomic operations. Blocks may run on several CPU threads, so these are real atomics, with relaxed
// order as in CUDA. All these functions return the old value. A CUDA thread may wait in a loop of
// atomics for another thread, because atomics let other CUDA threads run now and then. atomicAdd(p,
// 0), which only reads a value, also lets other threads run.
#pragma once

#ifdef MINIDL_CHECK
#define MINIDL_TURN(file, line) minidl_check_turn(file, line)
extern "C" void minidl_check_turn(const char* file, int line);
#elif defined(MINIDL_FIBRE)
static __thread unsigned minidl_atomics;
#define MINIDL_TURN(file, line) ((++minidl_atomics & 31) == 0 ? minidl_spin(file, line) : (void)0)
#else
#define MINIDL_TURN(file, line) ((void)0)
#endif

// The unsigned integer type of n_bytes bytes. The atomics for floats exchange the bits as this
// type.
template <int n_bytes> struct MinidlBits;
template <> struct MinidlBits<4> { typedef unsigned type; };
template <> struct MinidlBits<8> { typedef unsigned long long type; };

// Replaces the value at p by change(value), and returns the old value. If another thread changes
// the value at the same time, the function tries again.
template <class T, class Change> MINIDL_INLINE T minidl_atomic(T* p, Change change) {
  typedef typename MinidlBits<sizeof(T)>::type Bits;
  Bits before = __atomic_load_n((Bits*)p, __ATOMIC_RELAXED), after;
  T old;
  do {
    __builtin_memcpy(&old, &before, sizeof(T));
    T value = change(old);
    __builtin_memcpy(&after, &value, sizeof(T));
  } while (!__atomic_compare_exchange_n((Bits*)p, &before, after, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return old;
}

#define MINIDL_ATOMIC_INTEGER(T) \
  MINIDL_INLINE T atomicAdd(T* p, T v, MINIDL_HERE) { \
    if (v == 0) MINIDL_TURN(file, line); \
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); \
  } \
  MINIDL_INLINE T atomicSub(T* p, T v, MINIDL_HERE) { \
    if (v == 0) MINIDL_TURN(file, line); \
    return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED); \
  } \
  MINIDL_INLINE T atomicAnd(T* p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); } \
  MINIDL_INLINE T atomicOr(T* p, T v, MINIDL_HERE) { \
    if (v == 0) MINIDL_TURN(file, line); \
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); \
  } \
  MINIDL_INLINE T atomicXor(T* p, T v, MINIDL_HERE) { \
    if (v == 0) MINIDL_TURN(file, line); \
    return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED); \
  } \
  MINIDL_INLINE T atomicMax(T* p, T v) { \
      return minidl_atomic(p, [=](T old) { return old > v ? old : v; }); } \
  MINIDL_INLINE T atomicMin(T* p, T v) { \
      return minidl_atomic(p, [=](T old) { return old < v ? old : v; }); } \
  MINIDL_INLINE T atomicExch(T* p, T v, MINIDL_HERE) { \
    MINIDL_TURN(file, line); \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); \
  } \
  MINIDL_INLINE T atomicCAS(T* p, T compare, T v, MINIDL_HERE) { \
    MINIDL_TURN(file, line); \
    __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return compare; \
  }

MINIDL_ATOMIC_INTEGER(int)
MINIDL_ATOMIC_INTEGER(unsigned)
MINIDL_ATOMIC_INTEGER(unsigned long long)
MINIDL_ATOMIC_INTEGER(long long)

MINIDL_INLINE float atomicAdd(float* p, float v) {
  return minidl_atomic(p, [=](float old) { return old + v; });
}
MINIDL_INLINE double atomicAdd(double* p, double v) {
  return minidl_atomic(p, [=](double old) { return old + v; });
}
MINIDL_INLINE float atomicExch(float* p, float v) {
  return minidl_atomic(p, [=](float) { return v; });
}
MINIDL_INLINE unsigned atomicInc(unsigned* p, unsigned limit) {
  return minidl_atomic(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
MINIDL_INLINE unsigned atomicDec(unsigned* p, unsigned limit) {
  return minidl_atomic(p, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}

// In CUDA, atomics with _block in their names work for the threads of one block. Atomics with
// _system work for all GPUs and the CPU. In this header they are the same as the other atomics.
#define atomicAdd_block atomicAdd
#define atomicSub_block atomicSub
#define atomicExch_block atomicExch
#define atomicMin_block atomicMin
#define atomicMax_block atomicMax
#define atomicInc_block atomicInc
#define atomicDec_block atomicDec
#define atomicCAS_block atomicCAS
#define atomicAnd_block atomicAnd
#define atomicOr_block atomicOr
#define atomicXor_block atomicXor
#define atomicAdd_system atomicAdd
#define atomicSub_system atomicSub
#define atomicExch_system atomicExch
#define atomicMin_system atomicMin
#define atomicMax_system atomicMax
#define atomicInc_system atomicInc
#define atomicDec_system atomicDec
#define atomicCAS_system atomicCAS
#define atomicAnd_system atomicAnd
#define atomicOr_system atomicOr
#define atomicXor_system atomicXor

// More functions of CUDA for device code: bytes and bits, memcpy, clocks, atomics on halves.
// Test: tests/cuda/host/test_words.py
#pragma once

// Selects four of eight bytes. The bytes of x have the numbers 0 to 3, from the lowest, and the
// bytes of y have 4 to 7. s has a selector of 4 bits for each byte of the result. Its lowest three
// bits are the number of a byte. If bit 3 is set, all 8 bits of the result are the sign of the
// selected byte.
MINIDL_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned selector = s >> 4 * i & 15, byte = (unsigned)(both >> 8 * (selector & 7)) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}

// The __funnelshift functions shift the 64 bits (hi, lo) by n, and return 32 bits of them. They use
// n modulo 32. The functions whose names end in `c` use min(n, 32).
MINIDL_INLINE unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
  return (unsigned)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
MINIDL_INLINE unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
  return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
MINIDL_INLINE unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned n) {
  return n >= 32 ? lo : __funnelshift_l(lo, hi, n);
}
MINIDL_INLINE unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned n) {
  return n >= 32 ? hi : __funnelshift_r(lo, hi, n);
}
MINIDL_INLINE unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
MINIDL_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) {
  return (a > b ? a - b : b - a) + c;
}
MINIDL_INLINE unsigned __sad(int a, int b, unsigned c) {
  return (a > b ? (unsigned)a - b : (unsigned)b - a) + c;
}
MINIDL_INLINE unsigned __uhadd(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a + b) >> 1);
}
MINIDL_INLINE int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }

// Copies words of four bytes if possible, as a GPU does. So the check form counts the same
// accesses.
MINIDL_INLINE void* minidl_memcpy(void* to, const void* from, size_t n) {
  size_t i = 0;
  if (((size_t)to | (size_t)from | n) % 4 == 0)
    for (; i < n; i += 4) *(unsigned*)((char*)to + i) = *(const unsigned*)((const char*)from + i);
  for (; i < n; ++i) ((char*)to)[i] = ((const char*)from)[i];
  return to;
}
MINIDL_INLINE void* minidl_memset(void* to, int value, size_t n) {
  size_t i = 0;
  if (((size_t)to | n) % 4 == 0)
    for (; i < n; i += 4) *(unsigned*)((char*)to + i) = (unsigned char)value * 0x01010101u;
  for (; i < n; ++i) ((char*)to)[i] = (char)value;
  return to;
}
MINIDL_INLINE void* minidl_memmove(void* to, const void* from, size_t n) {
  if (to <= from) return minidl_memcpy(to, from, n);
  for (size_t i = n; i-- > 0;) ((char*)to)[i] = ((const char*)from)[i];
  return to;
}
#define memcpy minidl_memcpy
#define memset minidl_memset
#define memmove minidl_memmove

// Defines the operator `new (memory) T(...)`, which makes an object in given memory.
inline void* operator new(size_t, void* memory) noexcept { return memory; }
inline void* operator new[](size_t, void* memory) noexcept { return memory; }

// Returns the time of a clock that never goes back.
MINIDL_INLINE long long clock64() {
#if defined(__x86_64__)
  return (long long)__builtin_ia32_rdtsc();
#else
  long long t;
  asm volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#endif
}
typedef long clock_t;
MINIDL_INLINE clock_t clock() { return (clock_t)clock64(); }

#if defined(MINIDL_CHECK) || defined(MINIDL_FIBRE)
#define __nanosleep(ns) ((void)(ns), minidl_spin(__FILE__, __LINE__))  // lets other threads run
#else
#define __nanosleep(ns) ((void)(ns))
#endif
#define __trap() minidl_fail("__trap()", __FILE__, __LINE__)
#define __brkpt() __trap()
MINIDL_INLINE void __prof_trigger(int) {}
template <class T> MINIDL_INLINE bool __isGlobal(const T*) { return true; }

// ---- atomics on halves: they exchange a word of 16 or 32 bits ----

template <> struct MinidlBits<2> { typedef unsigned short type; };
MINIDL_INLINE __half atomicAdd(__half* p, __half v) {
  return minidl_atomic(p, [=](__half old) { return old + v; });
}
MINIDL_INLINE __half2 atomicAdd(__half2* p, __half2 v) {
  return minidl_atomic(p, [=](__half2 old) { return __hadd2(old, v); });
}
MINIDL_INLINE __nv_bfloat16 atomicAdd(__nv_bfloat16* p, __nv_bfloat16 v) {
  return minidl_atomic(p, [=](__nv_bfloat16 old) { return old + v; });
}
MINIDL_INLINE __nv_bfloat162 atomicAdd(__nv_bfloat162* p, __nv_bfloat162 v) {
  return minidl_atomic(p, [=](__nv_bfloat162 old) { return __hadd2(old, v); });
}
MINIDL_INLINE unsigned short atomicCAS(unsigned short* p, unsigned short compare, unsigned short v,
                                       MINIDL_HERE) {
  MINIDL_TURN(file, line);
  __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return compare;
}

// ---- more of half2 ----

MINIDL_INLINE __half2 __h2div(__half2 a, __half2 b) { return {a.x / b.x, a.y / b.y}; }
MINIDL_INLINE __half2 operator/(__half2 a, __half2 b) { return __h2div(a, b); }
MINIDL_INLINE __half2 operator-(__half2 a) { return {-a.x, -a.y}; }
MINIDL_INLINE __half2& operator+=(__half2& a, __half2 b) { return a = a + b; }
MINIDL_INLINE __half2& operator-=(__half2& a, __half2 b) { return a = a - b; }
MINIDL_INLINE __half2& operator*=(__half2& a, __half2 b) { return a = a * b; }
MINIDL_INLINE __half2& operator/=(__half2& a, __half2 b) { return a = a / b; }
MINIDL_INLINE __half2 __hneg2(__half2 a) { return -a; }
MINIDL_INLINE __half2 __habs2(__half2 a) { return {fabsf(a.x), fabsf(a.y)}; }
MINIDL_INLINE __half __habs(__half a) { return fabsf(a); }
MINIDL_INLINE __half2 __hmax2(__half2 a, __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
MINIDL_INLINE __half2 __hmin2(__half2 a, __half2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
MINIDL_INLINE __half2 __lowhigh2highlow(__half2 a) { return {a.y, a.x}; }
MINIDL_INLINE __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
MINIDL_INLINE __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
#define MINIDL_HALF_COMPARE(NAME, OP)                                                           \
  MINIDL_INLINE __half2 __h##NAME##2(__half2 a, __half2 b) {                                    \
    return {(float)a.x OP (float)b.x ? 1.0f : 0.0f, (float)a.y OP (float)b.y ? 1.0f : 0.0f};    \
  }                                                                                             \
  MINIDL_INLINE bool __hb##NAME##2(__half2 a, __half2 b) {                                      \
    return (float)a.x OP (float)b.x && (float)a.y OP (float)b.y;                                \
  }
MINIDL_HALF_COMPARE(eq, ==) MINIDL_HALF_COMPARE(ne, !=) MINIDL_HALF_COMPARE(lt, <)
MINIDL_HALF_COMPARE(le, <=) MINIDL_HALF_COMPARE(gt, >) MINIDL_HALF_COMPARE(ge, >=)
MINIDL_INLINE bool __heq(__half a, __half b) { return (float)a == (float)b; }
MINIDL_INLINE bool __hne(__half a, __half b) { return (float)a != (float)b; }
MINIDL_INLINE bool __hle(__half a, __half b) { return (float)a <= (float)b; }
MINIDL_INLINE bool __hge(__half a, __half b) { return (float)a >= (float)b; }
MINIDL_INLINE __half hlog(__half a) { return __half(logf(a)); }
MINIDL_INLINE __half hrsqrt(__half a) { return __half(rsqrtf(a)); }
MINIDL_INLINE __half hrcp(__half a) { return __half(1.0f / (float)a); }
MINIDL_INLINE __half htanh(__half a) { return __half(tanhf(a)); }
MINIDL_INLINE __half2 h2exp(__half2 a) { return {hexp(a.x), hexp(a.y)}; }
MINIDL_INLINE __half2 h2log(__half2 a) { return {hlog(a.x), hlog(a.y)}; }
MINIDL_INLINE __half2 h2sqrt(__half2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }
MINIDL_INLINE __half2 h2rsqrt(__half2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }
MINIDL_INLINE __half2 h2rcp(__half2 a) { return {hrcp(a.x), hrcp(a.y)}; }
MINIDL_INLINE int __half2int_rn(__half a) { return __float2int_rn(a); }
MINIDL_INLINE int __half2int_rz(__half a) { return __float2int_rz(a); }
MINIDL_INLINE __half __short2half_rn(short i) { return __half((float)i); }
MINIDL_INLINE __half __uint2half_rn(unsigned i) { return __half((float)i); }
MINIDL_INLINE __half __double2half(double f) { return __half((float)f); }
MINIDL_INLINE short __half_as_short(__half h) { return (short)h.bits; }
MINIDL_INLINE __half __short_as_half(short s) { return __ushort_as_half((unsigned short)s); }

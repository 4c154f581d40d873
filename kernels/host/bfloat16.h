// __nv_bfloat16 has the upper 16 bits of a float, rounded to nearest, ties to even. Arithmetic is
// in float. Python passes arrays of minidl.bfloat16, or their bits as uint16.
// Test: tests/cuda/host/test_words.py
#pragma once

MINIDL_INLINE unsigned short minidl_float_to_bf16(float f) {
  unsigned bits = minidl_bits(f), rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return (unsigned short)(f != f ? 0x7fffu : rounded);
}

struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  MINIDL_MEMBER __nv_bfloat16(float f) : bits(minidl_float_to_bf16(f)) {}
  MINIDL_MEMBER __nv_bfloat16(double f) : bits(minidl_float_to_bf16((float)f)) {}
  MINIDL_MEMBER __nv_bfloat16(int i) : bits(minidl_float_to_bf16((float)i)) {}
  MINIDL_MEMBER operator float() const { return minidl_float((unsigned)bits << 16); }
  MINIDL_MEMBER __nv_bfloat16& operator+=(__nv_bfloat16 b) { return *this = (float)*this + (float)b; }
  MINIDL_MEMBER __nv_bfloat16& operator-=(__nv_bfloat16 b) { return *this = (float)*this - (float)b; }
  MINIDL_MEMBER __nv_bfloat16& operator*=(__nv_bfloat16 b) { return *this = (float)*this * (float)b; }
  MINIDL_MEMBER __nv_bfloat16& operator/=(__nv_bfloat16 b) { return *this = (float)*this / (float)b; }
};
typedef __nv_bfloat16 nv_bfloat16;

#define MINIDL_BF16_OPERATOR(OP, NAME)                                    \
  MINIDL_INLINE __nv_bfloat16 operator OP(__nv_bfloat16 a, __nv_bfloat16 b) { \
    return __nv_bfloat16((float)a OP (float)b);                           \
  }                                                                       \
  MINIDL_INLINE __nv_bfloat16 NAME(__nv_bfloat16 a, __nv_bfloat16 b) { return a OP b; }
MINIDL_BF16_OPERATOR(+, __hadd)
MINIDL_BF16_OPERATOR(-, __hsub)
MINIDL_BF16_OPERATOR(*, __hmul)
MINIDL_BF16_OPERATOR(/, __hdiv)
MINIDL_INLINE __nv_bfloat16 operator-(__nv_bfloat16 a) { return __nv_bfloat16(-(float)a); }
MINIDL_INLINE __nv_bfloat16 __hneg(__nv_bfloat16 a) { return -a; }
MINIDL_INLINE __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __nv_bfloat16((float)a * (float)b + (float)c);
}
MINIDL_INLINE __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(fmaxf(a, b));
}
MINIDL_INLINE __nv_bfloat16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(fminf(a, b));
}
MINIDL_INLINE bool __hgt(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a > (float)b; }
MINIDL_INLINE bool __hlt(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a < (float)b; }
MINIDL_INLINE bool __hisnan(__nv_bfloat16 a) { return (float)a != (float)a; }
MINIDL_INLINE float __bfloat162float(__nv_bfloat16 b) { return b; }
MINIDL_INLINE __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
MINIDL_INLINE __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
MINIDL_INLINE __nv_bfloat16 __double2bfloat16(double f) { return __nv_bfloat16(f); }
MINIDL_INLINE __nv_bfloat16 __int2bfloat16_rn(int i) { return __nv_bfloat16((float)i); }
MINIDL_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
MINIDL_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) {
  __nv_bfloat16 b;
  b.bits = u;
  return b;
}

struct MINIDL_VECTOR_ALIGN(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  MINIDL_MEMBER __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) {}
};
typedef __nv_bfloat162 nv_bfloat162;
MINIDL_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
MINIDL_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
MINIDL_INLINE __nv_bfloat162 __float2bfloat162_rn(float f) { return {f, f}; }
MINIDL_INLINE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
MINIDL_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 f) { return {f.x, f.y}; }
MINIDL_INLINE float2 __bfloat1622float2(__nv_bfloat162 b) { return {b.x, b.y}; }
MINIDL_INLINE float __low2float(__nv_bfloat162 b) { return b.x; }
MINIDL_INLINE float __high2float(__nv_bfloat162 b) { return b.y; }
#define MINIDL_BF162(OP, NAME)                                                     \
  MINIDL_INLINE __nv_bfloat162 NAME(__nv_bfloat162 a, __nv_bfloat162 b) {          \
    return {a.x OP b.x, a.y OP b.y};                                               \
  }                                                                                \
  MINIDL_INLINE __nv_bfloat162 operator OP(__nv_bfloat162 a, __nv_bfloat162 b) {   \
    return NAME(a, b);                                                             \
  }
MINIDL_BF162(+, __hadd2) MINIDL_BF162(-, __hsub2) MINIDL_BF162(*, __hmul2) MINIDL_BF162(/, __h2div)
MINIDL_INLINE __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

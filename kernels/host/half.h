// __half and __half2: 16 bits in memory, arithmetic in float. The conversions are integer
// arithmetic without branches, so the compiler can vectorise a loop over them. A test compares all
// 65,536 halves with NumPy (tests/cuda/host/test_float_math.py).
#pragma once

MINIDL_INLINE float minidl_half_to_float(unsigned short h) {
  // moves exponent and mantissa to their places in a float
  unsigned magnitude = (h & 0x7fffu) << 13;
  unsigned normal = magnitude + ((127u - 15u) << 23);  // a float's exponent bias is 127, not 15
  // infinity and NaN keep an exponent of all ones
  unsigned special = magnitude + ((255u - 31u) << 23);
  // A subnormal half is m * 2^-24. So use m as the mantissa of a float with exponent -14, and
  // subtract 2^-14.
  float subnormal = minidl_float(magnitude + (113u << 23)) - 6.103515625e-05f;
  unsigned bits = magnitude < 0x00800000u ? minidl_bits(subnormal) : magnitude >=
      0x0f800000u ? special : normal;
  return minidl_float(bits | (h & 0x8000u) << 16);
}

MINIDL_INLINE unsigned short minidl_float_to_half(float f) {
  unsigned bits = minidl_bits(f), sign = bits & 0x80000000u, magnitude = bits ^ sign;
  // Round to nearest, ties to even. The half keeps 10 bits of the mantissa, and 13 bits are cut. So
  // add 0xfff, and one more if the last kept bit is 1.
  unsigned normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  // For a subnormal half: a float at 0.5 has the unit 2^-24 in its last bit. So adding 0.5 makes
  // the processor round to this unit.
  unsigned subnormal = minidl_bits(minidl_float(magnitude) + 0.5f) - 0x3f000000u;
  unsigned special = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x1ffu) : 0x7c00u;
  unsigned half = magnitude < 0x38800000u ? subnormal : magnitude >= 0x47800000u ? special : normal;
  return (unsigned short)(half | sign >> 16);
}

struct __half {
  unsigned short bits;
  __half() = default;
  MINIDL_MEMBER __half(float f) : bits(minidl_float_to_half(f)) {}
  MINIDL_MEMBER __half(double f) : bits(minidl_float_to_half((float)f)) {}
  MINIDL_MEMBER __half(int i) : bits(minidl_float_to_half((float)i)) {}
  MINIDL_MEMBER operator float() const { return minidl_half_to_float(bits); }
  MINIDL_MEMBER __half& operator+=(__half b) { return *this = __half((float)*this + (float)b); }
  MINIDL_MEMBER __half& operator-=(__half b) { return *this = __half((float)*this - (float)b); }
  MINIDL_MEMBER __half& operator*=(__half b) { return *this = __half((float)*this * (float)b); }
  MINIDL_MEMBER __half& operator/=(__half b) { return *this = __half((float)*this / (float)b); }
};
typedef __half half;

#define MINIDL_HALF_OPERATOR(OP, NAME) \
  MINIDL_INLINE __half operator OP(__half a, __half b) { return __half((float)a OP (float)b); } \
  MINIDL_INLINE __half NAME(__half a, __half b) { return a OP b; }
MINIDL_HALF_OPERATOR(+, __hadd)
MINIDL_HALF_OPERATOR(-, __hsub)
MINIDL_HALF_OPERATOR(*, __hmul)
MINIDL_HALF_OPERATOR(/, __hdiv)
MINIDL_INLINE __half operator-(__half a) { return __half(-(float)a); }
MINIDL_INLINE __half __hneg(__half a) { return -a; }
MINIDL_INLINE __half __hfma(__half a, __half b, __half c) {
  return __half((float)a * (float)b + (float)c);
}
MINIDL_INLINE __half __hmax(__half a, __half b) { return __half(fmaxf(a, b)); }
MINIDL_INLINE __half __hmin(__half a, __half b) { return __half(fminf(a, b)); }
MINIDL_INLINE bool __hgt(__half a, __half b) { return (float)a > (float)b; }
MINIDL_INLINE bool __hlt(__half a, __half b) { return (float)a < (float)b; }
MINIDL_INLINE bool __hisnan(__half a) { return (a.bits & 0x7fff) > 0x7c00; }
MINIDL_INLINE __half hexp(__half a) { return __half(expf(a)); }
MINIDL_INLINE __half hsqrt(__half a) { return __half(sqrtf(a)); }

MINIDL_INLINE float __half2float(__half h) { return h; }
MINIDL_INLINE __half __float2half(float f) { return __half(f); }
MINIDL_INLINE __half __float2half_rn(float f) { return __half(f); }
MINIDL_INLINE __half __int2half_rn(int i) { return __half((float)i); }
MINIDL_INLINE unsigned short __half_as_ushort(__half h) { return h.bits; }
MINIDL_INLINE __half __ushort_as_half(unsigned short u) { __half h; h.bits = u; return h; }

struct MINIDL_VECTOR_ALIGN(4) __half2 {
  __half x, y;
  __half2() = default;
  MINIDL_MEMBER __half2(__half x, __half y) : x(x), y(y) {}
};
typedef __half2 half2;
MINIDL_INLINE __half2 make_half2(__half x, __half y) { return {x, y}; }
MINIDL_INLINE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
MINIDL_INLINE __half2 __half2half2(__half x) { return {x, x}; }
MINIDL_INLINE __half2 __float2half2_rn(float f) { return {__half(f), __half(f)}; }
MINIDL_INLINE __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
MINIDL_INLINE __half2 __float22half2_rn(float2 f) { return {__half(f.x), __half(f.y)}; }
MINIDL_INLINE float2 __half22float2(__half2 h) { return {h.x, h.y}; }
MINIDL_INLINE float __low2float(__half2 h) { return h.x; }
MINIDL_INLINE float __high2float(__half2 h) { return h.y; }
MINIDL_INLINE __half __low2half(__half2 h) { return h.x; }
MINIDL_INLINE __half __high2half(__half2 h) { return h.y; }
MINIDL_INLINE __half2 __hadd2(__half2 a, __half2 b) { return {a.x + b.x, a.y + b.y}; }
MINIDL_INLINE __half2 __hsub2(__half2 a, __half2 b) { return {a.x - b.x, a.y - b.y}; }
MINIDL_INLINE __half2 __hmul2(__half2 a, __half2 b) { return {a.x * b.x, a.y * b.y}; }
MINIDL_INLINE __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
MINIDL_INLINE __half2 operator+(__half2 a, __half2 b) { return __hadd2(a, b); }
MINIDL_INLINE __half2 operator-(__half2 a, __half2 b) { return __hsub2(a, b); }
MINIDL_INLINE __half2 operator*(__half2 a, __half2 b) { return __hmul2(a, b); }

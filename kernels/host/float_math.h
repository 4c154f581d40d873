// float functions without branches and without calls. So the compiler can vectorise a loop that
// uses them. It cannot vectorise a loop with calls of libm. Each function reduces its argument to a
// small interval. In this interval a polynomial is exact to the last digit. The polynomials were
// fitted by weighted least squares to float64 values (Lawson's iteration). The error is at most 1.5
// units in the last place, compared with float64. Infinities, NaN and subnormal numbers are
// correct.
// Test: tests/cuda/host/test_float_math.py
#pragma once

#define MINIDL_MEMBER inline __attribute__((always_inline))

MINIDL_INLINE unsigned minidl_bits(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
MINIDL_INLINE float minidl_float(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }

MINIDL_INLINE float __uint_as_float(unsigned u) { return minidl_float(u); }
MINIDL_INLINE unsigned __float_as_uint(float x) { return minidl_bits(x); }
MINIDL_INLINE float __int_as_float(int i) { return minidl_float((unsigned)i); }
MINIDL_INLINE int __float_as_int(float x) { return (int)minidl_bits(x); }
MINIDL_INLINE long long __double_as_longlong(double x) {
  long long i; __builtin_memcpy(&i, &x, 8); return i;
}
MINIDL_INLINE double __longlong_as_double(long long i) {
  double x; __builtin_memcpy(&x, &i, 8); return x;
}

MINIDL_INLINE float fabsf(float x) { return __builtin_fabsf(x); }
MINIDL_INLINE float copysignf(float x, float s) { return __builtin_copysignf(x, s); }
MINIDL_INLINE float sqrtf(float x) { return __builtin_sqrtf(x); }
MINIDL_INLINE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
// If one argument is NaN, fmaxf and fminf return the other argument, as in IEEE 754.
MINIDL_INLINE float fmaxf(float a, float b) { float m = a > b ? a : b; return b != b ? a : m; }
MINIDL_INLINE float fminf(float a, float b) { float m = a < b ? a : b; return b != b ? a : m; }
MINIDL_INLINE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }


// Returns 2^n for an integer n in [-126, 127]: n is put into the exponent field.
MINIDL_INLINE float minidl_power_of_two(int n) { return minidl_float((unsigned)(n + 127) << 23); }

// Returns e^r 2^n for |r| <= ln(2) / 2. 2^n is split into two factors. Without this, 2^n may be
// infinite or subnormal where e^r 2^n is not.
MINIDL_INLINE float minidl_exp_scaled(float r, int n) {
  float p = 0.001381446490995586f;
  p = p * r + 0.008368780836462975f;
  p = p * r + 0.04166839271783829f;
  p = p * r + 0.1666651964187622f;
  p = p * r + 0.4999999403953552f;
  p = p * r * r + r + 1.0f;
  int half = n >> 1;
  return p * minidl_power_of_two(half) * minidl_power_of_two(n - half);
}

// e^x = 2^n e^r, n = round(x / ln 2), r = x - n ln 2. ln 2 is the sum of two constants, so that r
// is exact.
MINIDL_INLINE float expf(float x) {
  x = x > 89.0f ? 89.0f : x;  // infinity from 88.73 up
  x = x < -104.0f ? -104.0f : x;  // zero from -103.98 down
  float t = x * 1.442695041f + 12582912.0f;
  float n = t - 12582912.0f;
  float r = x - n * 0.693145751953125f;  // 16 bits of ln 2, so n times it is exact
  r = r - n * 1.42860682030941723e-6f;
  return minidl_exp_scaled(r, (int)(minidl_bits(t) - 0x4b400000u));
}

MINIDL_INLINE float exp2f(float x) {
  x = x > 129.0f ? 129.0f : x;
  x = x < -151.0f ? -151.0f : x;
  float t = x + 12582912.0f;
  float f = x - (t - 12582912.0f);
  // 2^f = e^(f ln 2), where ln 2 is the sum of two constants
  return minidl_exp_scaled(f * 0.693147182464599609f + f * -1.90465429995776804e-9f,
                           (int)(minidl_bits(t) - 0x4b400000u));
}

// log x = e ln 2 + log(1 + f),  x = 2^e (1 + f),  1 + f in [sqrt(1/2), sqrt(2)).
MINIDL_INLINE float logf(float x) {
  bool tiny = x < 1.17549435e-38f;
  float scaled = tiny ? x * 8388608.0f : x;  // a subnormal number times 2^23 is normal
  // if the bits of sqrt(1/2) are subtracted, the exponent field is e
  unsigned u = minidl_bits(scaled) - 0x3f3504f3u;
  int exponent = (int)u >> 23;
  float e = (float)exponent - (tiny ? 23.0f : 0.0f);
  float f = minidl_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float q = 0.06746601313352585f;
  q = q * f - 0.11675640940666199f;
  q = q * f + 0.11888174712657928f;
  q = q * f - 0.12405591458082199f;
  q = q * f + 0.14219550788402557f;
  q = q * f - 0.1666799634695053f;
  q = q * f + 0.2000211924314499f;
  q = q * f - 0.25000008940696716f;
  q = q * f + 0.3333331346511841f;
  float small = q * f * f * f + e * 1.42860682030941723e-6f - 0.5f * f * f;
  float result = small + f + e * 0.693145751953125f;
  result = x == 0.0f ? -__builtin_inff() : result;
  result = x < 0.0f ? __builtin_nanf("") : result;
  return x < __builtin_inff() ? result : x;  // infinity and NaN are their own logarithms
}

// For small |x|, tanh x is computed by an odd polynomial. For larger |x| it is 1 - 2 / (e^2x + 1).
// The rounding errors of this fraction are small compared with 1.
MINIDL_INLINE float tanhf(float x) {
  float a = __builtin_fabsf(x), s = x * x;
  float p = -0.005648307502269745f;
  p = p * s + 0.020589817315340042f;
  p = p * s - 0.05372512340545654f;
  p = p * s + 0.13331274688243866f;
  p = p * s - 0.33333274722099304f;
  float near = p * s * a + a;
  float far = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? near : far, x);
}

// For small |x|, erf x is computed by an odd polynomial. For larger |x| it is 1 - e^q(|x|), where q
// is a polynomial for log(erfc).
MINIDL_INLINE float erff(float x) {
  float a = __builtin_fabsf(x), s = x * x;
  float p = -0.000595373916439712f;
  p = p * s + 0.0049859401769936085f;
  p = p * s - 0.026761719956994057f;
  p = p * s + 0.11281682550907135f;
  p = p * s - 0.3761247992515564f;
  p = p * s + 0.12837915122509003f;
  float near = p * a + a;
  float b = a > 4.0f ? 4.0f : a;  // erf(3.92) rounds to 1
  float q = 0.00019593826436903328f;
  q = q * b - 0.0030432266648858786f;
  q = q * b + 0.022226955741643906f;
  q = q * b - 0.10393166542053223f;
  q = q * b - 0.6371821761131287f;
  q = q * b - 1.1276756525039673f;
  q = q * b - 0.00019566653645597398f;
  float far = 1.0f - expf(q);
  far = a != a ? a : far;
  return __builtin_copysignf(a < 0.92f ? near : far, x);
}
MINIDL_INLINE float erfcf(float x) { return __builtin_erfcf(x); }

// The other functions call libm. They are correct, but a loop that uses them is not vectorised.
#define MINIDL_LIBM(NAME)                                                          \
  MINIDL_INLINE float NAME##f(float x) { return __builtin_##NAME##f(x); }          \
  MINIDL_INLINE float NAME(float x) { return __builtin_##NAME##f(x); }             \
  MINIDL_INLINE double NAME(double x) { return __builtin_##NAME(x); }
#define MINIDL_LIBM2(NAME)                                                                     \
  MINIDL_INLINE float NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }          \
  MINIDL_INLINE float NAME(float x, float y) { return __builtin_##NAME##f(x, y); }             \
  MINIDL_INLINE double NAME(double x, double y) { return __builtin_##NAME(x, y); }
// With a float argument these names call a function of this file, with a double argument they call
// libm.
#define MINIDL_OVERLOAD(NAME)                                                      \
  MINIDL_INLINE float NAME(float x) { return NAME##f(x); }                         \
  MINIDL_INLINE double NAME(double x) { return __builtin_##NAME(x); }

MINIDL_LIBM(sin) MINIDL_LIBM(cos) MINIDL_LIBM(tan)
MINIDL_LIBM(asin) MINIDL_LIBM(acos) MINIDL_LIBM(atan)
MINIDL_LIBM(sinh) MINIDL_LIBM(cosh)
MINIDL_LIBM(log2) MINIDL_LIBM(log10) MINIDL_LIBM(log1p) MINIDL_LIBM(expm1)
MINIDL_LIBM(cbrt)
MINIDL_LIBM(floor) MINIDL_LIBM(ceil) MINIDL_LIBM(trunc) MINIDL_LIBM(round) MINIDL_LIBM(rint)
MINIDL_LIBM(lgamma) MINIDL_LIBM(tgamma)
MINIDL_LIBM2(pow) MINIDL_LIBM2(fmod) MINIDL_LIBM2(atan2) MINIDL_LIBM2(hypot)
MINIDL_OVERLOAD(exp) MINIDL_OVERLOAD(exp2) MINIDL_OVERLOAD(log) MINIDL_OVERLOAD(tanh)
MINIDL_OVERLOAD(erf) MINIDL_OVERLOAD(erfc)
MINIDL_OVERLOAD(sqrt) MINIDL_OVERLOAD(fabs)
MINIDL_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
MINIDL_INLINE float rsqrt(float x) { return rsqrtf(x); }
MINIDL_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
MINIDL_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MINIDL_INLINE double fmax(double a, double b) { return __builtin_fmax(a, b); }
MINIDL_INLINE double fmin(double a, double b) { return __builtin_fmin(a, b); }
MINIDL_INLINE float fmax(float a, float b) { return fmaxf(a, b); }
MINIDL_INLINE float fmin(float a, float b) { return fminf(a, b); }
MINIDL_INLINE double copysign(double x, double s) { return __builtin_copysign(x, s); }
MINIDL_INLINE float ldexpf(float x, int n) { return __builtin_ldexpf(x, n); }
MINIDL_INLINE float exp10f(float x) { return __builtin_powf(10.0f, x); }
MINIDL_INLINE void sincosf(float x, float* s, float* c) {
  *s = __builtin_sinf(x), *c = __builtin_cosf(x);
}
MINIDL_INLINE float normcdff(float x) { return 0.5f * __builtin_erfcf(x * -0.70710678118654752f); }
MINIDL_INLINE float fdividef(float a, float b) { return a / b; }
MINIDL_INLINE float nearbyintf(float x) { return __builtin_rintf(x); }

MINIDL_INLINE bool isnan(float x) { return x != x; }
MINIDL_INLINE bool isnan(double x) { return x != x; }
MINIDL_INLINE bool isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
MINIDL_INLINE bool isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }
MINIDL_INLINE bool isfinite(float x) { return __builtin_fabsf(x) < __builtin_inff(); }
MINIDL_INLINE bool isfinite(double x) { return __builtin_fabs(x) < __builtin_inf(); }

// The fast intrinsics. On a CPU they are as exact as the other functions.
MINIDL_INLINE float __expf(float x) { return expf(x); }
MINIDL_INLINE float __exp2f(float x) { return exp2f(x); }
MINIDL_INLINE float __logf(float x) { return logf(x); }
MINIDL_INLINE float __log2f(float x) { return __builtin_log2f(x); }
MINIDL_INLINE float __sinf(float x) { return __builtin_sinf(x); }
MINIDL_INLINE float __cosf(float x) { return __builtin_cosf(x); }
MINIDL_INLINE float __powf(float x, float y) { return __builtin_powf(x, y); }
MINIDL_INLINE float __tanhf(float x) { return tanhf(x); }
MINIDL_INLINE float __fdividef(float a, float b) { return a / b; }
MINIDL_INLINE float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
#define MINIDL_ROUNDED(NAME, EXPRESSION) \
  MINIDL_INLINE float NAME(float a, float b) { return EXPRESSION; }
MINIDL_ROUNDED(__fadd_rn, a + b) MINIDL_ROUNDED(__fsub_rn, a - b) MINIDL_ROUNDED(__fmul_rn, a * b)
MINIDL_ROUNDED(__fdiv_rn, a / b) MINIDL_ROUNDED(__fdividef_rn, a / b)
MINIDL_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MINIDL_INLINE float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
MINIDL_INLINE float __frsqrt_rn(float x) { return rsqrtf(x); }
MINIDL_INLINE float __frcp_rn(float x) { return 1.0f / x; }

// Conversions. _rn rounds to nearest, ties to even, _rz toward zero, _rd down, _ru up.
MINIDL_INLINE int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
MINIDL_INLINE int __float2int_rz(float x) { return (int)x; }
MINIDL_INLINE int __float2int_rd(float x) { return (int)__builtin_floorf(x); }
MINIDL_INLINE int __float2int_ru(float x) { return (int)__builtin_ceilf(x); }
MINIDL_INLINE float __int2float_rn(int i) { return (float)i; }
MINIDL_INLINE float __uint2float_rn(unsigned i) { return (float)i; }
MINIDL_INLINE unsigned __float2uint_rz(float x) { return (unsigned)x; }
MINIDL_INLINE int lrintf(float x) { return (int)__builtin_rintf(x); }

// min and max. If the two arguments have different types, C's usual rules convert them, as in CUDA.
#define MINIDL_MIN_MAX(T)                                             \
  MINIDL_INLINE T min(T a, T b) { return b < a ? b : a; }             \
  MINIDL_INLINE T max(T a, T b) { return a < b ? b : a; }
MINIDL_MIN_MAX(int) MINIDL_MIN_MAX(unsigned) MINIDL_MIN_MAX(long) MINIDL_MIN_MAX(unsigned long)
MINIDL_MIN_MAX(long long) MINIDL_MIN_MAX(unsigned long long)
MINIDL_INLINE float min(float a, float b) { return fminf(a, b); }
MINIDL_INLINE float max(float a, float b) { return fmaxf(a, b); }
MINIDL_INLINE double min(double a, double b) { return __builtin_fmin(a, b); }
MINIDL_INLINE double max(double a, double b) { return __builtin_fmax(a, b); }
#define MINIDL_MIXED(A, B, T)                                         \
  MINIDL_INLINE T min(A a, B b) { return min((T)a, (T)b); }           \
  MINIDL_INLINE T min(B b, A a) { return min((T)b, (T)a); }           \
  MINIDL_INLINE T max(A a, B b) { return max((T)a, (T)b); }           \
  MINIDL_INLINE T max(B b, A a) { return max((T)b, (T)a); }
MINIDL_MIXED(int, unsigned, unsigned) MINIDL_MIXED(int, long, long)
MINIDL_MIXED(int, long long, long long)
MINIDL_MIXED(int, unsigned long, unsigned long) MINIDL_MIXED(unsigned, unsigned long, unsigned long)
MINIDL_MIXED(unsigned, unsigned long long, unsigned long long)
MINIDL_MIXED(int, unsigned long long, unsigned long long)
MINIDL_MIXED(float, double, double) MINIDL_MIXED(int, float, float)
MINIDL_INLINE int abs(int x) { return x < 0 ? -x : x; }
MINIDL_INLINE long abs(long x) { return x < 0 ? -x : x; }
MINIDL_INLINE long long abs(long long x) { return x < 0 ? -x : x; }
MINIDL_INLINE float abs(float x) { return __builtin_fabsf(x); }
MINIDL_INLINE double abs(double x) { return __builtin_fabs(x); }

// Bit functions.
MINIDL_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
MINIDL_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
MINIDL_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
MINIDL_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
MINIDL_INLINE int __ffs(int x) { return __builtin_ffs(x); }
MINIDL_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
MINIDL_INLINE unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
MINIDL_INLINE unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
MINIDL_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
MINIDL_INLINE int __mul24(int a, int b) { return a * b; }
MINIDL_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
// Returns c plus the dot product of four signed bytes (compute capability 6.1).
MINIDL_INLINE int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
  return c;
}

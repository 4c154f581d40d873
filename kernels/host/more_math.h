// The other math functions and conversions of CUDA. They call libm, or have only one line. A loop
// that uses them is not vectorised. Two groups of functions are missing. One is arithmetic that
// rounds toward zero, up or down, such as __fadd_rz. The other is arithmetic on packed bytes, such
// as __vadd4.
// Test: tests/cuda/host/test_more_math.py
#pragma once

MINIDL_LIBM(acosh) MINIDL_LIBM(asinh) MINIDL_LIBM(atanh) MINIDL_LIBM(logb)
MINIDL_LIBM2(fdim) MINIDL_LIBM2(remainder) MINIDL_LIBM2(nextafter)

// Bessel functions. They are declared with the names that they have in libm, because only g++ has
// them as built-ins. macOS has no j0f, so the double functions are used.
#define MINIDL_TEXT(NAME) #NAME
#define MINIDL_QUOTED(NAME) MINIDL_TEXT(NAME)
#define MINIDL_LINKED(NAME) __asm__(MINIDL_QUOTED(__USER_LABEL_PREFIX__) #NAME)
#define MINIDL_BESSEL(NAME)                                                        \
  extern "C" double minidl_##NAME(double) MINIDL_LINKED(NAME);                     \
  MINIDL_INLINE double NAME(double x) { return minidl_##NAME(x); }                 \
  MINIDL_INLINE float NAME##f(float x) { return (float)minidl_##NAME(x); }         \
  MINIDL_INLINE float NAME(float x) { return NAME##f(x); }
#define MINIDL_BESSEL_OF_ORDER(NAME)                                               \
  extern "C" double minidl_##NAME(int, double) MINIDL_LINKED(NAME);                \
  MINIDL_INLINE double NAME(int n, double x) { return minidl_##NAME(n, x); }       \
  MINIDL_INLINE float NAME##f(int n, float x) { return (float)minidl_##NAME(n, x); }
MINIDL_BESSEL(j0) MINIDL_BESSEL(j1) MINIDL_BESSEL(y0) MINIDL_BESSEL(y1)
MINIDL_BESSEL_OF_ORDER(jn) MINIDL_BESSEL_OF_ORDER(yn)

MINIDL_INLINE double exp10(double x) { return __builtin_pow(10.0, x); }
MINIDL_INLINE float exp10(float x) { return exp10f(x); }
MINIDL_INLINE double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
MINIDL_INLINE float ldexp(float x, int n) { return ldexpf(x, n); }
MINIDL_INLINE float scalbnf(float x, int n) { return ldexpf(x, n); }
MINIDL_INLINE double scalbn(double x, int n) { return ldexp(x, n); }
MINIDL_INLINE float scalbn(float x, int n) { return ldexpf(x, n); }
MINIDL_INLINE double nearbyint(double x) { return __builtin_rint(x); }
MINIDL_INLINE float nearbyint(float x) { return nearbyintf(x); }
MINIDL_INLINE float copysign(float x, float s) { return copysignf(x, s); }
MINIDL_INLINE bool signbit(float x) { return __builtin_signbit(x) != 0; }
MINIDL_INLINE bool signbit(double x) { return __builtin_signbit(x) != 0; }
MINIDL_INLINE int ilogbf(float x) { return __builtin_ilogbf(x); }
MINIDL_INLINE int ilogb(double x) { return __builtin_ilogb(x); }
MINIDL_INLINE float nanf(const char*) { return __builtin_nanf(""); }
MINIDL_INLINE double nan(const char*) { return __builtin_nan(""); }

// Functions that return a result through a pointer. Code of this header, and not of libm, stores
// the result, so that the check form sees the store.
MINIDL_INLINE float frexpf(float x, int* e) {
  int n;
  float m = __builtin_frexpf(x, &n);
  *e = n;
  return m;
}
MINIDL_INLINE double frexp(double x, int* e) {
  int n;
  double m = __builtin_frexp(x, &n);
  *e = n;
  return m;
}
MINIDL_INLINE float frexp(float x, int* e) { return frexpf(x, e); }
MINIDL_INLINE float modff(float x, float* whole) {
  float w = __builtin_truncf(x);
  *whole = w;
  return __builtin_copysignf(isinf(x) ? 0.0f : x - w, x);
}
MINIDL_INLINE double modf(double x, double* whole) {
  double w = __builtin_trunc(x);
  *whole = w;
  return __builtin_copysign(isinf(x) ? 0.0 : x - w, x);
}
MINIDL_INLINE float modf(float x, float* whole) { return modff(x, whole); }
MINIDL_INLINE float remquof(float x, float y, int* q) {
  int n;
  float r = __builtin_remquof(x, y, &n);
  *q = n;
  return r;
}
MINIDL_INLINE void sincos(double x, double* s, double* c) {
  *s = __builtin_sin(x), *c = __builtin_cos(x);
}
MINIDL_INLINE void sincos(float x, float* s, float* c) { sincosf(x, s, c); }
MINIDL_INLINE void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }

// sin(pi x) and cos(pi x). First x is reduced modulo 2, which is exact.
MINIDL_INLINE double sinpi(double x) {
  double r = __builtin_fmod(x, 2.0);
  return r == __builtin_trunc(r) ? __builtin_copysign(0.0, x) : __builtin_sin(M_PI * r);
}
MINIDL_INLINE double cospi(double x) {
  double r = __builtin_fabs(__builtin_fmod(x, 2.0));
  return r == 0.5 || r == 1.5 ? 0.0 : __builtin_cos(M_PI * r);
}
MINIDL_INLINE float sinpif(float x) { return (float)sinpi(x); }
MINIDL_INLINE float cospif(float x) { return (float)cospi(x); }
MINIDL_INLINE void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
MINIDL_INLINE void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }

// Lengths of vectors, and their reciprocals. The float functions compute in double, because the
// square of a float cannot overflow in double.
MINIDL_INLINE float norm3df(float a, float b, float c) {
  return (float)__builtin_sqrt((double)a * a + (double)b * b + (double)c * c);
}
MINIDL_INLINE float norm4df(float a, float b, float c, float d) {
  return (float)__builtin_sqrt((double)a * a + (double)b * b + (double)c * c + (double)d * d);
}
MINIDL_INLINE double norm3d(double a, double b, double c) {
  return __builtin_hypot(__builtin_hypot(a, b), c);
}
MINIDL_INLINE float normf(int n, const float* a) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += (double)a[i] * a[i];
  return (float)__builtin_sqrt(sum);
}
MINIDL_INLINE float rnorm3df(float a, float b, float c) { return 1.0f / norm3df(a, b, c); }
MINIDL_INLINE float rnorm4df(float a, float b, float c, float d) {
  return 1.0f / norm4df(a, b, c, d);
}
MINIDL_INLINE float rhypotf(float a, float b) { return 1.0f / __builtin_hypotf(a, b); }
MINIDL_INLINE double rhypot(double a, double b) { return 1.0 / __builtin_hypot(a, b); }
MINIDL_INLINE float rcbrtf(float x) { return 1.0f / __builtin_cbrtf(x); }
MINIDL_INLINE double rcbrt(double x) { return 1.0 / __builtin_cbrt(x); }
MINIDL_INLINE double normcdf(double x) { return 0.5 * __builtin_erfc(x * -0.70710678118654752); }

MINIDL_INLINE float __tanf(float x) { return __builtin_tanf(x); }
MINIDL_INLINE float __log10f(float x) { return __builtin_log10f(x); }
MINIDL_INLINE float __exp10f(float x) { return exp10f(x); }
MINIDL_INLINE double __dadd_rn(double a, double b) { return a + b; }
MINIDL_INLINE double __dsub_rn(double a, double b) { return a - b; }
MINIDL_INLINE double __dmul_rn(double a, double b) { return a * b; }
MINIDL_INLINE double __ddiv_rn(double a, double b) { return a / b; }
MINIDL_INLINE double __drcp_rn(double x) { return 1.0 / x; }
MINIDL_INLINE double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
MINIDL_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

// Integer functions.
MINIDL_INLINE unsigned umin(unsigned a, unsigned b) { return min(a, b); }
MINIDL_INLINE unsigned umax(unsigned a, unsigned b) { return max(a, b); }
MINIDL_INLINE long long llmin(long long a, long long b) { return min(a, b); }
MINIDL_INLINE long long llmax(long long a, long long b) { return max(a, b); }
MINIDL_INLINE unsigned long long ullmin(unsigned long long a, unsigned long long b) {
  return min(a, b);
}
MINIDL_INLINE unsigned long long ullmax(unsigned long long a, unsigned long long b) {
  return max(a, b);
}
MINIDL_INLINE long labs(long x) { return abs(x); }
MINIDL_INLINE long long llabs(long long x) { return abs(x); }
MINIDL_INLINE unsigned __umul24(unsigned a, unsigned b) {
  return (a & 0xffffffu) * (b & 0xffffffu);
}
MINIDL_INLINE long long __mul64hi(long long a, long long b) {
  return (long long)((__int128)a * b >> 64);
}
MINIDL_INLINE int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
MINIDL_INLINE unsigned __urhadd(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a + b + 1) >> 1);
}
MINIDL_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}
// Returns the position of the offset-th set bit of mask, counted upwards from bit `base`. If offset
// is negative, it is counted downwards. Returns ~0 if there is no such bit.
MINIDL_INLINE unsigned __fns(unsigned mask, unsigned base, int offset) {
  if (offset == 0) return mask >> base & 1 ? base : ~0u;
  const int step = offset > 0 ? 1 : -1;
  int left = offset * step;
  for (int at = (int)base; at >= 0 && at < 32; at += step)
    if (mask >> at & 1 && --left == 0) return (unsigned)at;
  return ~0u;
}

// Conversions. _rn rounds to nearest, ties to even, _rz toward zero, _rd down, _ru up. A number
// that does not fit becomes the nearest number that fits. NaN becomes 0.
template <class I, class F> MINIDL_INLINE I minidl_to_integer(F x) {
  const bool is_signed = (I)-1 < (I)0;
  const int bits = 8 * sizeof(I) - is_signed;
  const I most = (I)(~0ull >> (64 - bits)), least = is_signed ? (I)(-(I)most - 1) : (I)0;
  if (!(x == x)) return 0;
  if (x >= __builtin_ldexp(1.0, bits)) return most;
  if (x <= (is_signed ? -__builtin_ldexp(1.0, bits) : 0.0)) return least;
  return (I)x;
}
#define MINIDL_TO_INTEGER(FROM, TO, F, I)                                                          \
  MINIDL_INLINE I __##FROM##2##TO##_rn(F x) { return minidl_to_integer<I>(__builtin_rint(x)); }    \
  MINIDL_INLINE I __##FROM##2##TO##_rz(F x) { return minidl_to_integer<I>(__builtin_trunc(x)); }   \
  MINIDL_INLINE I __##FROM##2##TO##_rd(F x) { return minidl_to_integer<I>(__builtin_floor(x)); }   \
  MINIDL_INLINE I __##FROM##2##TO##_ru(F x) { return minidl_to_integer<I>(__builtin_ceil(x)); }
MINIDL_TO_INTEGER(float, ll, float, long long)
MINIDL_TO_INTEGER(float, ull, float, unsigned long long)
MINIDL_TO_INTEGER(double, int, double, int)
MINIDL_TO_INTEGER(double, uint, double, unsigned)
MINIDL_TO_INTEGER(double, ll, double, long long)
MINIDL_TO_INTEGER(double, ull, double, unsigned long long)
MINIDL_INLINE unsigned __float2uint_rn(float x) {
  return minidl_to_integer<unsigned>(__builtin_rintf(x));
}
MINIDL_INLINE unsigned __float2uint_rd(float x) {
  return minidl_to_integer<unsigned>(__builtin_floorf(x));
}
MINIDL_INLINE unsigned __float2uint_ru(float x) {
  return minidl_to_integer<unsigned>(__builtin_ceilf(x));
}
MINIDL_INLINE float __double2float_rn(double x) { return (float)x; }
MINIDL_INLINE double __int2double_rn(int i) { return i; }
MINIDL_INLINE double __uint2double_rn(unsigned i) { return i; }
MINIDL_INLINE double __ll2double_rn(long long i) { return (double)i; }
MINIDL_INLINE double __ull2double_rn(unsigned long long i) { return (double)i; }
MINIDL_INLINE float __ll2float_rn(long long i) { return (float)i; }
MINIDL_INLINE float __ull2float_rn(unsigned long long i) { return (float)i; }
MINIDL_INLINE int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
MINIDL_INLINE int __double2loint(double x) { return (int)__double_as_longlong(x); }
MINIDL_INLINE double __hiloint2double(int hi, int lo) {
  return __longlong_as_double((long long)((unsigned long long)(unsigned)hi << 32 | (unsigned)lo));
}
// lround and llround round a number such as 2.5 away from zero. lrint and llrint round it to even.
MINIDL_INLINE long lroundf(float x) { return (long)__builtin_roundf(x); }
MINIDL_INLINE long lround(double x) { return (long)__builtin_round(x); }
MINIDL_INLINE long lrint(double x) { return (long)__builtin_rint(x); }
MINIDL_INLINE long long llroundf(float x) { return (long long)__builtin_roundf(x); }
MINIDL_INLINE long long llround(double x) { return (long long)__builtin_round(x); }
MINIDL_INLINE long long llrintf(float x) { return (long long)__builtin_rintf(x); }
MINIDL_INLINE long long llrint(double x) { return (long long)__builtin_rint(x); }

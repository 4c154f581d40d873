// Structs such as float4, with CUDA's names. In the check form they have CUDA's alignment, so that
// a misaligned cast of a pointer is found. In the other forms they have the alignment of their
// elements, so that such a cast does not crash the process.
#pragma once

#define MINIDL_INLINE static inline __attribute__((always_inline, unused))
#define MINIDL_EXPORT extern "C" __attribute__((visibility("default")))

#ifdef MINIDL_CHECK
#define MINIDL_VECTOR_ALIGN(n) __attribute__((aligned(n)))
#else
#define MINIDL_VECTOR_ALIGN(n)
#endif

#define MINIDL_VECTORS(NAME, T) \
  struct NAME##1 { T x; }; \
  struct MINIDL_VECTOR_ALIGN(2 * sizeof(T)) NAME##2 { T x, y; }; \
  struct NAME##3 { T x, y, z; }; \
  struct MINIDL_VECTOR_ALIGN(sizeof(T) < 8 ? 4 * sizeof(T) : 16) NAME##4 { T x, y, z, w; }; \
  MINIDL_INLINE NAME##1 make_##NAME##1(T x) { return NAME##1{x}; } \
  MINIDL_INLINE NAME##2 make_##NAME##2(T x, T y) { return NAME##2{x, y}; } \
  MINIDL_INLINE NAME##3 make_##NAME##3(T x, T y, T z) { return NAME##3{x, y, z}; } \
  MINIDL_INLINE NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4{x, y, z, w}; }

MINIDL_VECTORS(char, signed char)
MINIDL_VECTORS(uchar, unsigned char)
MINIDL_VECTORS(short, short)
MINIDL_VECTORS(ushort, unsigned short)
MINIDL_VECTORS(int, int)
MINIDL_VECTORS(uint, unsigned int)
MINIDL_VECTORS(long, long)
MINIDL_VECTORS(ulong, unsigned long)
MINIDL_VECTORS(longlong, long long)
MINIDL_VECTORS(ulonglong, unsigned long long)
MINIDL_VECTORS(float, float)
MINIDL_VECTORS(double, double)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};

// Registers the names and addresses of __device__, __managed__ and __constant__ variables. So
// Python can read and write them (get_global), and the check form can watch them.
// minidl/cuda/host/cpu.py inserts MINIDL_VARIABLE after the declaration of each variable.
#pragma once

// NumPy's name of an element type, or "" for a type that NumPy does not have.
template <class V> struct MinidlType { static constexpr const char* name = ""; };
#define MINIDL_TYPE(T, NAME) \
  template <> struct MinidlType<T> { static constexpr const char* name = NAME; };
MINIDL_TYPE(float, "f4") MINIDL_TYPE(double, "f8") MINIDL_TYPE(__half, "f2")
MINIDL_TYPE(bool, "?") MINIDL_TYPE(char, "i1") MINIDL_TYPE(signed char, "i1")
MINIDL_TYPE(unsigned char, "u1") MINIDL_TYPE(short, "i2") MINIDL_TYPE(unsigned short, "u2")
MINIDL_TYPE(int, "i4") MINIDL_TYPE(unsigned, "u4") MINIDL_TYPE(long, "i8")
MINIDL_TYPE(unsigned long, "u8") MINIDL_TYPE(long long, "i8") MINIDL_TYPE(unsigned long long, "u8")

template <class V> struct MinidlElement { typedef V type; };
template <class V> struct MinidlElement<const V> : MinidlElement<V> {};
template <class V> struct MinidlElement<volatile V> : MinidlElement<V> {};
template <class V, size_t n> struct MinidlElement<V[n]> : MinidlElement<V> {};
template <class V, size_t n> struct MinidlElement<const V[n]> : MinidlElement<V> {};
template <class V, size_t n> struct MinidlElement<volatile V[n]> : MinidlElement<V> {};

// The size of an element of an array in bytes, and the last two dimensions of the array.
template <class V> struct MinidlShape { enum { element = sizeof(V), rows = 0, columns = 0 }; };
template <class V, size_t n> struct MinidlShape<V[n]> {
    enum { element = sizeof(V), rows = 0, columns = n }; };
template <class V, size_t m, size_t n> struct MinidlShape<V[m][n]> {
    enum { element = sizeof(V), rows = m, columns = n }; };
template <class V, size_t l, size_t m, size_t n>
struct MinidlShape<V[l][m][n]> : MinidlShape<V[m][n]> {};

// minidl/cuda/host/variables.py declares this struct with the same layout, and session.cpp declares
// its first members. If you change the struct, change all three files. is_const: 1 for a
// __constant__ variable, which Python may write. 2 for a const variable, which lies in read-only
// memory.
struct MinidlVariable {
  unsigned long long begin, bytes;
  const char* name;
  int element, rows, columns, is_const;
  const char* type;
  MinidlVariable* next;
  static MinidlVariable*& first() {
    static MinidlVariable* list;
    return list;
  }
  template <class V> MinidlVariable(const char* name, V& v, int is_const)
      : begin((unsigned long long)&v), bytes(sizeof v), name(name),
        element(MinidlShape<V>::element), rows(MinidlShape<V>::rows),
        columns(MinidlShape<V>::columns), is_const(is_const),
        type(MinidlType<typename MinidlElement<V>::type>::name), next(first()) {
    first() = this;
  }
};
#define MINIDL_VARIABLE(NAME, IS_CONST) \
  static MinidlVariable minidl_variable_##NAME(#NAME, NAME, IS_CONST);
MINIDL_EXPORT MinidlVariable* minidl_variables() { return MinidlVariable::first(); }

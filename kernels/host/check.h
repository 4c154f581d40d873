// The kernel's side of the check form: each __shared__ variable tells its name, place and shape
// where it is declared. minidl/cuda/checks/hooks.py puts the call minidl_shared("tile", tile) behind the
// declaration.
#pragma once

extern "C" void minidl_check_shared(const char* name, void* p, size_t n_bytes, int element,
                                    int rows, int columns);
extern "C" void minidl_check_dynamic(const char* name, int element);

// The element of T[a][b][c], and its last two extents.
template <class V> struct MinidlShape { enum { element = sizeof(V), rows = 0, columns = 0 }; };
template <class V, size_t n> struct MinidlShape<V[n]> {
    enum { element = sizeof(V), rows = 0, columns = n }; };
template <class V, size_t m, size_t n> struct MinidlShape<V[m][n]> {
    enum { element = sizeof(V), rows = m, columns = n }; };
template <class V, size_t l, size_t m, size_t n>
struct MinidlShape<V[l][m][n]> : MinidlShape<V[m][n]> {};

template <class V> MINIDL_INLINE void minidl_shared(const char* name, V& v) {
  typedef MinidlShape<V> Shape;
  minidl_check_shared(name, (void*)&v, sizeof v, Shape::element, Shape::rows, Shape::columns);
}

// The kernel's side of the check form: each __shared__ variable tells its name, place and shape
// where it is declared. minidl/cuda/checks/hooks.py puts the call minidl_shared("tile", tile) behind the
// declaration.
#pragma once

extern "C" void minidl_check_shared(const char* name, void* p, size_t n_bytes, int element,
                                    int rows, int columns);
extern "C" void minidl_check_dynamic(const char* name, int element);

template <class V> MINIDL_INLINE void minidl_shared(const char* name, V& v) {
  typedef MinidlShape<V> Shape;
  minidl_check_shared(name, (void*)&v, sizeof v, Shape::element, Shape::rows, Shape::columns);
}

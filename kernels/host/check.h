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

extern "C" void minidl_check_matrix_row(const void* row);

// A local array or number between guards: locals.cpp. A value of a class, which may have made itself,
// counts as written. inner: in braces within its function's, which end
// before the function does.
extern "C" void minidl_local_begins(const char* name, void* p, unsigned long long bytes,
                                    int element, int has_values);
extern "C" void minidl_local_ends(void* p, int inner);
template <class A, bool inner = false> struct MinidlLocal {
  char before[64];
  A a;
  char after[64];
  MINIDL_MEMBER MinidlLocal(const char* name) {
    mark();
    const bool is_class = !MinidlShape<A>::columns && !*MinidlType<A>::name;
    minidl_local_begins(name, (void*)&a, sizeof a, MinidlShape<A>::element, is_class);
  }
  MINIDL_MEMBER MinidlLocal(const char* name, const A& values) {
    mark();
    minidl_local_begins(name, (void*)&a, sizeof a, MinidlShape<A>::element, 1);
    __builtin_memcpy((void*)&a, (const void*)&values, sizeof a);
  }
  MINIDL_MEMBER ~MinidlLocal() { minidl_local_ends((void*)&a, inner); }
  // The compiler tells of a function's beginning and end (__tsan_func_entry) only if it finds an
  // access of memory in it.
  MINIDL_MEMBER void mark() {
    if (inner) *(volatile char*)before = 0;
  }
};

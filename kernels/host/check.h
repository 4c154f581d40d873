// The check form puts this header before a kernel. Each __shared__ variable must register its name,
// address and shape. For this, minidl/cuda/checks/hooks.py inserts a call such as
// minidl_shared("tile", tile) after the declaration.
#pragma once

extern "C" void minidl_check_shared(const char* name, void* p, size_t n_bytes, int element,
                                    int rows, int columns);
extern "C" void minidl_check_dynamic(const char* name, int element);

template <class V> MINIDL_INLINE void minidl_shared(const char* name, V& v) {
  typedef MinidlShape<V> Shape;
  minidl_check_shared(name, (void*)&v, sizeof v, Shape::element, Shape::rows, Shape::columns);
}

extern "C" void minidl_check_matrix_row(const void* row);

// A local array or number that lies between two guards (locals.cpp). An object of a class counts as
// written, because its constructor may have written it. inner: true if the variable is declared in
// inner braces, so that its lifetime ends before the function returns.
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
  // Writes a byte, because the compiler reports the beginning and the end of a function
  // (__tsan_func_entry) only if the function accesses memory.
  MINIDL_MEMBER void mark() {
    if (inner) *(volatile char*)before = 0;
  }
};

// A kernel that is compiled with the compiler's sanitizers calls a function at each load, store and
// atomic. It also calls a function where a check of the compiler fails. The kernel is not linked
// with the compiler's libraries. Instead, it calls the functions of this file, which pass
// everything to check.cpp.
//
//     kernel.cu --g++ -fsanitize=thread,bounds,alignment,...--> calls __tsan_read4(p),
//                                              __tsan_write4(p), __ubsan_handle_out_of_bounds(...)
//
// Test: tests/cuda/checks/test_check.py, test_check_idioms.py
#include <string.h>

#include "watch.h"

#define HERE __builtin_return_address(0)
#define HOOK_OF(type) extern "C" __attribute__((visibility("default"))) type
#define HOOK HOOK_OF(void)

HOOK __tsan_init() {}
HOOK __tsan_func_entry(void*) { minidl_called(true); }
HOOK __tsan_func_exit() { minidl_called(false); }
HOOK __tsan_vptr_read(void**) {}
HOOK __tsan_vptr_update(void**, void*) {}
HOOK __tsan_read_range(void* p, unsigned long n) { minidl_access((u64)p, n, READ, HERE); }
HOOK __tsan_write_range(void* p, unsigned long n) { minidl_access((u64)p, n, WRITE, HERE); }
// clang does not check the alignment when a struct such as a float4 is copied. So the alignment is
// checked here. clang calls __tsan_read and __tsan_write only for addresses that should be aligned
// (to at most 8 bytes). For other addresses it calls functions with "unaligned" in their names.
#ifdef __clang__
#define ALIGNED(p, n) \
  if ((u64)p % (n < 8 ? n : 8)) minidl_misaligned((u64)p, n, "'value of " #n " bytes'", HERE)
#else
#define ALIGNED(p, n)
#endif
#define ACCESSES(n)                                                                        \
  HOOK __tsan_read##n(void* p) { ALIGNED(p, n); minidl_access((u64)p, n, READ, HERE); }           \
  HOOK __tsan_write##n(void* p) { ALIGNED(p, n); minidl_access((u64)p, n, WRITE, HERE); }         \
  HOOK __tsan_unaligned_read##n(void* p) { minidl_access((u64)p, n, READ, HERE); }                \
  HOOK __tsan_unaligned_write##n(void* p) { minidl_access((u64)p, n, WRITE, HERE); }              \
  HOOK __tsan_volatile_read##n(void* p) { minidl_volatile((u64)p, n, READ, HERE); }               \
  HOOK __tsan_volatile_write##n(void* p) { minidl_volatile((u64)p, n, WRITE, HERE); }             \
  HOOK __tsan_unaligned_volatile_read##n(void* p) { minidl_volatile((u64)p, n, READ, HERE); }     \
  HOOK __tsan_unaligned_volatile_write##n(void* p) { minidl_volatile((u64)p, n, WRITE, HERE); }   \
  HOOK __tsan_read_write##n(void* p) { \
    minidl_access((u64)p, n, READ, HERE), minidl_access((u64)p, n, WRITE, HERE); \
  }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)

// clang calls __tsan_memcpy, __tsan_memmove and __tsan_memset to assign large structs.
HOOK_OF(void*) __tsan_memcpy(void* to, const void* from,
    unsigned long n) {
  minidl_access((u64)from, n, READ, HERE), minidl_access((u64)to, n, WRITE, HERE);
  return memcpy(to, from, n);
}
HOOK_OF(void*) __tsan_memmove(void* to, const void* from,
    unsigned long n) {
  minidl_access((u64)from, n, READ, HERE), minidl_access((u64)to, n, WRITE, HERE);
  return memmove(to, from, n);
}
HOOK_OF(void*) __tsan_memset(void* to, int value,
    unsigned long n) {
  minidl_access((u64)to, n, WRITE, HERE);
  return memset(to, value, n);
}

#define FETCH(T, n, op)                                                                    \
  HOOK_OF(T) __tsan_atomic##n##_fetch_##op(volatile T* p, T v, int) {                   \
    minidl_access((u64)p, sizeof(T), ATOMIC, HERE);                                               \
    return __atomic_fetch_##op(p, v, __ATOMIC_SEQ_CST);                                    \
  }
#define ATOMICS(T, n)                                                                      \
  FETCH(T, n, add) FETCH(T, n, sub) FETCH(T, n, and) FETCH(T, n, or) FETCH(T, n, xor)      \
  HOOK_OF(T) __tsan_atomic##n##_load(const volatile T* p, int) {                        \
    minidl_access((u64)p, sizeof(T), ATOMIC_READ, HERE);                                          \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                           \
  }                                                                                        \
  HOOK __tsan_atomic##n##_store(volatile T* p, T v, int) {                     \
    minidl_access((u64)p, sizeof(T), ATOMIC, HERE);                                               \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                              \
  }                                                                                        \
  HOOK_OF(T) __tsan_atomic##n##_exchange(volatile T* p, T v, int) {                     \
    minidl_access((u64)p, sizeof(T), ATOMIC, HERE);                                               \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                    \
  }                                                                                        \
  HOOK_OF(int) __tsan_atomic##n##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) { \
    minidl_compare_exchange((u64)p, sizeof(T), HERE); \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                        \
  HOOK_OF(int) __tsan_atomic##n##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) { \
    minidl_compare_exchange((u64)p, sizeof(T), HERE); \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                        \
  /* clang calls only this function. It returns the old value. */                          \
  HOOK_OF(T) __tsan_atomic##n##_compare_exchange_val(volatile T* p, T c, T v, int, int) {  \
    minidl_compare_exchange((u64)p, sizeof(T), HERE); \
    __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return c; \
  }
ATOMICS(unsigned char, 8) ATOMICS(unsigned short, 16) ATOMICS(unsigned int, 32)
ATOMICS(unsigned long long, 64)

// The order tells which fence the kernel has called: in cuda_host.h __threadfence() is sequentially
// consistent, and __threadfence_block() is acquire-release.
HOOK __tsan_atomic_thread_fence(int order) { minidl_fence(order == __ATOMIC_SEQ_CST ? 1 : 2); }
HOOK __tsan_atomic_signal_fence(int) {}

// ---- the compiler's own checks: structs with the layouts of UBSan's runtime ----

struct SourceLocation { const char* file; unsigned line, column; };
struct TypeDescriptor { unsigned short kind, info; char name[1]; };
struct OutOfBoundsData { SourceLocation at; const TypeDescriptor *array, *index; };
struct TypeMismatchData {
  SourceLocation at;
  const TypeDescriptor* type;
  unsigned char log_alignment, check_kind;
};

HOOK __ubsan_handle_out_of_bounds(OutOfBoundsData* data, unsigned long index) {
  int unused = 64 - (1 << (data->index->info >> 1));  // the bits of the word above the index
  bool is_signed = data->index->info & 1;
  long long i = is_signed ? (long long)(index << unused) >> unused : (long long)index;
  minidl_bad_index(i, data->array->name, HERE);
}

HOOK __ubsan_handle_type_mismatch_v1(TypeMismatchData* data, unsigned long address) {
  const unsigned long alignment = 1ul << data->log_alignment;
  if (address & (alignment - 1))
    minidl_misaligned(address, alignment, data->type->name, HERE);
  else  // -fsanitize=object-size
    minidl_past_object(address, data->type->name, HERE);
}

struct ShiftData { SourceLocation at; const TypeDescriptor *left, *right; };
HOOK __ubsan_handle_shift_out_of_bounds(ShiftData* data, unsigned long, unsigned long by) {
  minidl_bad_shift((int)by, HERE);
}

HOOK __ubsan_handle_divrem_overflow(void*, unsigned long, unsigned long) {
  minidl_division_by_zero(HERE);
}

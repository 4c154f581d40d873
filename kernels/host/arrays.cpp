// A launch whose arguments name NumPy arrays as Python objects: checks them, takes their addresses.
//
//     Python   packs id(array)       0.1 us an array; asking it for its dtype, flags and address
//     C        finds &elements       would take 0.5 us, and for a layer norm of six arrays more than
//                                    all its arithmetic on a small input
//
// An array that is not exactly what the kernel's parameter says is Python's to refuse or to pass
// (arguments.py): minidl_start then runs nothing and returns -1.
// Compiled with the runtime (minidl/cuda/host/cpu.py).  Test: tests/cuda/host/test_arguments.py
#include <string.h>

#include "parallel.h"
#include "runtime.h"

// How an ndarray begins: PyArrayObject of NumPy's C-API, which no version since 1.7 has changed.
struct Array {
  long references;
  const void* type;
  void* elements;
  int n_dims;
  void *shape, *strides, *base;
  const void* dtype;
  int flags;
};

// What an argument must be: number i, a pointer to elements of this dtype (null: any).
struct Wanted {
  long long i;
  const void* dtype;
  long long flags;
};

struct Kernel {
  int (*launcher)(const MinidlLaunch*);
  const void* ndarray;  // the type
  long long n_bytes;    // of a launch
  unsigned long long look_at;  // the time, in ticks, when Python should look at the kernel's files
  long long n_wanted;
  Wanted wanted[];
};

// Some clock, read in 10 ns; and its ticks in some 10 to 30 ms.
static unsigned long long ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  unsigned long long t;
  asm volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#endif
}
#if defined(__x86_64__)
static const unsigned long long kTicks = 1 << 25;
#else
static const unsigned long long kTicks = 1 << 19;  // at 24 MHz; sooner where the clock is faster
#endif

// As the launcher: 0, or 1 with a sentence in minidl_error(). -1: not run, also because Python should
// see whether the kernel's files have changed.
MINIDL_EXPORT int minidl_start(const unsigned char* packed, Kernel* kernel) {
  const unsigned long long now = ticks();
  if (now - kernel->look_at < 1ull << 63) {
    kernel->look_at = now + kTicks;
    return -1;
  }
  MinidlLaunch* launch = (MinidlLaunch*)__builtin_alloca(kernel->n_bytes);
  memcpy(launch, packed, kernel->n_bytes);
  for (long long k = 0; k < kernel->n_wanted; ++k) {
    const Wanted& wanted = kernel->wanted[k];
    void** word = (void**)(launch->arguments + 8 * wanted.i);
    const Array* a = (const Array*)*word;
    if (a->type != kernel->ndarray || (wanted.dtype && a->dtype != wanted.dtype) ||
        (a->flags & wanted.flags) != wanted.flags)
      return -1;
    *word = a->elements;
  }
  return kernel->launcher(launch);
}

// Whether this Python and this NumPy lay an array out as above.
MINIDL_EXPORT int minidl_knows_arrays(const Array* a, const void* type, const void* elements,
                                      const void* dtype, int flags) {
  return a->type == type && a->elements == elements && a->dtype == dtype && a->flags == flags;
}

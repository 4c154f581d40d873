// Starts a launch whose arguments are NumPy arrays, given as Python objects. This code checks the
// arrays and takes their addresses.
//
//     Python   packs id(array)       This takes 0.1 us for each array. Python itself needs 0.5 us
//     C        finds &elements       to read the dtype, flags and address of an array. For a layer
//                                    norm of six small arrays, that is longer than the arithmetic
//
// If an array does not match the kernel's parameter exactly, minidl_start starts nothing and
// returns -1. Then Python raises an error, or passes the array in another way (arguments.py).
// Compiled with the runtime (minidl/cuda/host/cpu.py).
// Test: tests/cuda/host/test_arguments.py
#include <string.h>

#include "arrays.h"
#include "parallel.h"
#include "runtime.h"

// A requirement: argument number i must point to elements of this dtype (null: any dtype).
struct Wanted {
  long long i;
  const void* dtype;
  long long flags;
};

struct Kernel {
  int (*launcher)(const MinidlLaunch*);
  const void* ndarray;  // the type object
  long long n_bytes;    // bytes of a launch
  unsigned long long look_at;  // when Python should look at the kernel's files again, in ticks
  long long n_wanted;
  Wanted wanted[];
};

// Returns the time of a clock. Reading it takes only 10 ns. kTicks is 10 to 30 ms of this clock.
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
static const unsigned long long kTicks = 1 << 19;  // 22 ms at 24 MHz, less with a faster clock
#endif

// Returns what the launcher returns: 0, or 1 with a sentence in minidl_error(). Returns -1 if the
// launcher was not called. Then an array does not match, or Python must check whether the kernel's
// files have changed.
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

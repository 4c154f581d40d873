// The declarations that compiled kernels and the runtime library share. The runtime library is
// runtime.cpp and fibre.cpp, compiled once. In Python, minidl/cuda/host/arguments.py packs a
// MinidlLaunch with the same layout. Change the two files together.
#pragma once
#include "vector_types.h"

// Returns the size of a type in bytes. Returns 0 for a struct that is declared but not defined.
template <class T, int n_bytes = sizeof(T)> constexpr int minidl_size(int) { return n_bytes; }
template <class T> constexpr int minidl_size(...) { return 0; }

// What Python packs for one launch. After the last field come the kernel's arguments, in slots of
// eight bytes.
struct MinidlLaunch {
  unsigned grid[3], block[3];
  unsigned long long shared_bytes;
  // the order of threads and blocks. 0: ascending, 1: descending, another number: shuffled with
  // this seed
  int order;
  int threads;  // CPU threads at most
  unsigned char arguments[8];
};

// Runs units [begin, end) of a launch. A flat kernel's unit is a tile of its index space. A fibre
// kernel's unit is a block.
typedef void (*MinidlUnits)(const MinidlLaunch*, long long begin, long long end);
// Runs one CUDA thread of a fibre kernel.
typedef void (*MinidlThread)(const MinidlLaunch*, const uint3& thread, const uint3& block);

extern "C" {
// minidl_run_flat and minidl_run_fibres return 0. After an error they return 1, and minidl_error()
// returns a sentence about the error.
int minidl_run_flat(const MinidlLaunch*, MinidlUnits, long long n_units);
int minidl_run_fibres(const MinidlLaunch*, MinidlThread);
const char* minidl_error();
int minidl_refuse(const char* sentence);  // sets minidl_error(), returns 1

// Functions that a running CUDA thread calls (fibre.cpp). `file` and `line`: the place of the call
// in the kernel.
int minidl_syncthreads(int op, int value, const char* file, int line);  // op: see MINIDL_BARRIER_*
void minidl_warp(int op, unsigned mask, const void* value, int n_bytes, int source, void* result,
                 const char* file, int line);
// waits for all threads of a tile. n_threads: the size of the tile, which is larger than a warp
void minidl_tile_barrier(int n_threads, const char* file, int line);
void minidl_returned(const char* file, int line);
// lets other threads run. Atomics call it now and then
void minidl_spin(const char* file, int line);
void* minidl_dynamic_shared();
// registers bytes that must not change in this launch (MINIDL_GUARD below)
void minidl_guard(const char* name, struct MinidlBefore* before, char* behind, char* after);
unsigned minidl_lane();
void minidl_fail_assert(const char* condition, const char* file, int line);
void minidl_fail(const char* sentence, const char* file, int line);

// The rest is for the check form. Through MinidlObserver the fibre engine tells check.cpp when
// threads have reached a barrier. check.cpp can end a launch (minidl_stop). It can also ask where
// the stacks and the other memory are (minidl_memory).
struct MinidlObserver {
  void (*block_begins)();
  void (*barrier)();
  void (*warp_barrier)(int warp, unsigned lanes);
  void (*tile_barrier)(int begin, int end);  // for threads [begin, end) of the block
  // called for a shuffle whose source lane does not take part
  void (*odd_shuffle)(const char* sentence, void* result, int n_bytes);
};
// Sets the observer of the launches on this CPU thread. With null there is no observer.
void minidl_observe(const MinidlObserver*);
void minidl_stop(const char* sentence);      // ends the running launch with this error
struct MinidlMemory {
  char *engine, *stacks, *dynamic;
  unsigned long engine_bytes, stacks_bytes, dynamic_bytes, stack_bytes, guard_bytes;
};
MinidlMemory minidl_memory();
}

// Device functions read these variables. Kernels have parameters with the same names, which hide
// them. With the model initial-exec, the code finds thread-local variables without a call.
#define MINIDL_THREAD_LOCAL \
  __attribute__((visibility("default"), tls_model("initial-exec"))) __thread
extern MINIDL_THREAD_LOCAL uint3 threadIdx, blockIdx;
extern MINIDL_THREAD_LOCAL dim3 blockDim, gridDim;

// In a plain launch one guard lies before each __shared__ variable, and another guard lies after
// it. A guard is MINIDL_GUARD_BYTES bytes with a fixed pattern (32 doubles). Both guards are
// needed, because some compilers place the next variable after this one, and others place it
// before. At the end of every block the engine compares the guards with the pattern.
// minidl/cuda/host/shared.py declares the guards, and inserts MINIDL_GUARD after the variable. The
// first thread of a launch that comes to MINIDL_GUARD registers the guards with the engine.
enum { MINIDL_GUARD_BYTES = 256 };
struct MinidlBefore {
  unsigned launch;  // the last launch that came to MINIDL_GUARD
  char bytes[MINIDL_GUARD_BYTES];
};
extern MINIDL_THREAD_LOCAL unsigned minidl_launch_number;
#define MINIDL_GUARD(NAME)                                                                    \
  if (minidl_before_##NAME.launch != minidl_launch_number)                                    \
    minidl_guard(#NAME, &minidl_before_##NAME, minidl_guard_##NAME + sizeof(NAME), minidl_after_##NAME);

// A pointer argument from Python. It converts to any pointer type, because Python has already
// compared the array's type with the kernel's parameter.
struct MinidlPointer {
  void* p;
  explicit MinidlPointer(void* p) : p(p) {}
  template <class T> inline __attribute__((always_inline)) operator T*() const { return (T*)p; }
};

enum { MINIDL_BARRIER = 0, MINIDL_BARRIER_COUNT, MINIDL_BARRIER_AND, MINIDL_BARRIER_OR };
enum { MINIDL_SYNCWARP = 0, MINIDL_SHUFFLE, MINIDL_BALLOT };

#define MINIDL_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

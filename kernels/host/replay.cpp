// A plan's launches, one after the other: what a CUDA graph is on a GPU.
//
//   calls   launcher 0, launch 0     The launches were packed when the plan was made: all addresses
//           launcher 1, launch 1     are fixed. From Python, a launch costs a microsecond or two;
//           ...                      here it is a call.
//
// Compiled with the runtime (minidl/cuda/host/cpu.py).   Test: tests/infer/test_program.py
#include "parallel.h"
#include "runtime.h"

struct MinidlCall {
  int (*launcher)(const MinidlLaunch*);
  const MinidlLaunch* launch;
};

// Calls [begin, end): 0, or 1 + the number of the one that failed, and why in minidl_error().
MINIDL_EXPORT int minidl_replay(const MinidlCall* calls, int begin, int end) {
  int threads = end - begin > 1 ? calls[begin].launch->threads : 1, failed = 0;
  minidl_hold(threads);
  for (int i = begin; i < end && !failed; ++i)
    if (calls[i].launcher(calls[i].launch)) failed = i + 1;
  minidl_release(threads);
  return failed;
}

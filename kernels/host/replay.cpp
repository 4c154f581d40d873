// Runs the launches of a plan one after the other, as a CUDA graph does on a GPU.
//
//   calls   launcher 0, launch 0     The launches are packed when the plan is made, so all
//           launcher 1, launch 1     addresses are fixed. From Python a launch takes one or two
//           ...                      microseconds. In this file it is only a function call.
//
// Compiled with the runtime (minidl/cuda/host/cpu.py).
// Test: tests/infer/test_program.py
#include "parallel.h"
#include "runtime.h"

struct MinidlCall {
  int (*launcher)(const MinidlLaunch*);
  const MinidlLaunch* launch;
};

// Runs calls [begin, end). Returns 0. If a call fails, returns 1 + its number, and minidl_error()
// returns the reason.
MINIDL_EXPORT int minidl_replay(const MinidlCall* calls, int begin, int end) {
  int threads = end - begin > 1 ? calls[begin].launch->threads : 1, failed = 0;
  minidl_hold(threads);
  for (int i = begin; i < end && !failed; ++i)
    if (calls[i].launcher(calls[i].launch)) failed = i + 1;
  minidl_release(threads);
  return failed;
}

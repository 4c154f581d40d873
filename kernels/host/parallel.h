// MinidlWork is the body of a loop over units, with its context. minidl_parallel runs the loop on
// several CPU threads.
#pragma once

struct MinidlWork {
  void (*body)(const void* context, long long begin, long long end);
  const void* context;
  void operator()(long long begin, long long end) const { body(context, begin, end); }
};

// Runs the work. Returns false if a part had to be stopped. minidl_error() then returns the reason.
// kernel: null, or the key under which the time of one unit is stored for the next launch.
bool minidl_parallel(const MinidlWork& work, long long n_units, int threads,
                     const void* kernel = nullptr);

// For several launches in a row: between minidl_hold and minidl_release the threads stay awake.
void minidl_hold(int threads);
void minidl_release(int threads);

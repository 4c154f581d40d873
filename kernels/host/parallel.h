// A loop body over units [begin, end) with its context, and the function that spreads it over CPU
// threads.
#pragma once

struct MinidlWork {
  void (*body)(const void* context, long long begin, long long end);
  const void* context;
  void operator()(long long begin, long long end) const { body(context, begin, end); }
};

// False if a part had to be stopped; minidl_error() says why. kernel: by what the time that a unit
// takes is kept for the next launch, or none.
bool minidl_parallel(const MinidlWork& work, long long n_units, int threads,
                     const void* kernel = nullptr);

// Several launches follow each other: between hold and release the threads stay awake.
void minidl_hold(int threads);
void minidl_release(int threads);

// A kernel runs under a guard (guard.cpp): what would end the process ends the launch.
#pragma once

// Runs body(context, begin, end). False if it had to be stopped; minidl_error() then says why.
bool minidl_guarded(void (*body)(const void*, long long, long long), const void* context,
                    long long begin, long long end);
void minidl_progress();  // a block or a part of the units is done: no endless loop
// Ends the launch that runs on this CPU thread, from inside the kernel.
[[noreturn]] void minidl_end_launch(const char* sentence);
// fibre.cpp: whether fibres run on this CPU thread, so that threadIdx is the running thread's; and
// forget them.
bool minidl_in_fibres();
void minidl_abandon_fibres();

// Where and why the last guarded launch of this CPU thread was stopped by a signal; for check.cpp.
struct MinidlFault {
  int signal;  // 0: not by a signal
  unsigned long long pc, address, stack;
  bool stack_overflow;
};
extern "C" {
MinidlFault minidl_last_fault();
void minidl_pc_of(void* context, MinidlFault*, unsigned long long* stack);
unsigned minidl_progress_count();
int minidl_new_engine(void* at);
void minidl_set_watchdog(double seconds);
int minidl_waits_at(const char** file);  // the line of the running thread's last barrier, or 0
}

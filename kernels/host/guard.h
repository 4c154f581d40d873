// A kernel runs under a guard (guard.cpp). So an error such as a wild pointer ends only the launch,
// not the process.
#pragma once

// Runs body(context, begin, end). Returns false if `body` had to be stopped. minidl_error() then
// returns the reason.
bool minidl_guarded(void (*body)(const void*, long long, long long), const void* context,
                    long long begin, long long end);
void minidl_progress();  // a block, or a part of the units, has ended
// Ends the launch that runs on this CPU thread. Called from inside the kernel.
[[noreturn]] void minidl_end_launch(const char* sentence);
// These two functions are in fibre.cpp. minidl_in_fibres returns true if fibres run on this CPU
// thread. Then threadIdx belongs to the running fibre. After minidl_abandon_fibres no fibre of the
// block runs again.
bool minidl_in_fibres();
void minidl_abandon_fibres();

// Where and why a signal stopped the last guarded launch of this CPU thread, for session.cpp.
struct MinidlFault {
  int signal;  // 0: no signal stopped it
  unsigned long long pc, address, stack;
  bool stack_overflow;
};
extern "C" {
MinidlFault minidl_last_fault();
void minidl_pc_of(void* context, MinidlFault*, unsigned long long* stack);
unsigned minidl_progress_count();
int minidl_new_engine(void* at);
void minidl_set_watchdog(double seconds);
int minidl_waits_at(const char** file);  // line of the running thread's last barrier, or 0
}

// The runtime library, third part: a kernel's errors must not end Python or make it hang.
//
//     launch:  setjmp, kernel ...            At NULL, a wild pointer, x / 0 or a stack overflow the
//                 ^        |                 processor sends a signal. on_fault handles it and
//                 +--------+ longjmp         jumps back here. The launch returns an error.
//
//     watchdog: a separate thread. Ten times a second it looks for a launch that has made no
//     progress in 20 seconds of processor time, or that still runs two seconds after Ctrl-C. It
//     sends the signal SIGURG, which a process ignores by default, to the thread of this launch.
//     The handler jumps back in the same way.
//
// A stopped launch may have written only a part of its arrays. If a signal does not come from a
// kernel, it is passed to the handler that was installed before.
// Test: tests/cuda/host/test_guard.py
#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/ucontext.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

namespace {

const int kSlots = 512;                  // CPU threads that run kernels at the same time
const size_t kSignalStackBytes = 64 << 10;
const size_t kStackBytes = 256 << 20;    // if the main thread's stack has no limit
const double kPollSeconds = 0.1, kDozeSeconds = 2, kGraceSeconds = 2;
// The limit for processor time without progress. In a correct kernel no unit of work takes this
// long. The environment variable MINIDL_WATCHDOG sets another limit. 0 means no limit.
const double kLimitSeconds = 20;

enum Why { NOTHING, FAULT, ENDLESS, INTERRUPTED, SENTENCE };

// One slot for each CPU thread that has run a kernel.
struct Slot {
  volatile int claimed, running;
  volatile unsigned launch, progress;  // counters
  volatile int interrupts;             // the presses of Ctrl-C before this launch
  volatile unsigned stop_launch;       // the launch that the watchdog wants to end
  volatile int why;
  pthread_t thread;
  void* signal_stack;  // null if the thread already had one
  jmp_buf back;
  MinidlFault fault;
  char sentence[1024];
  // only the watchdog uses these
  unsigned seen_launch, seen_progress;
  double since, interrupted_at;
};

Slot slots[kSlots];
__attribute__((tls_model("initial-exec"))) __thread Slot* mine;
pthread_key_t at_thread_end;
volatile int interrupts, dozing;
bool watching;
double limit_seconds = kLimitSeconds;
pthread_mutex_t watch_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
struct sigaction before_fault[NSIG], before_int, before_urg;
const int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};

void registers(void* context, MinidlFault& f, unsigned long long& stack) {
  ucontext_t* c = (ucontext_t*)context;
#if defined(__APPLE__) && defined(__aarch64__)
  f.pc = c->uc_mcontext->__ss.__pc, stack = c->uc_mcontext->__ss.__sp;
#elif defined(__APPLE__)
  f.pc = c->uc_mcontext->__ss.__rip, stack = c->uc_mcontext->__ss.__rsp;
#elif defined(__x86_64__)
  f.pc = c->uc_mcontext.gregs[16], stack = c->uc_mcontext.gregs[15];  // REG_RIP, REG_RSP
#else
  f.pc = c->uc_mcontext.pc, stack = c->uc_mcontext.sp;
#endif
}

void pass_on(const struct sigaction& before, int signal, siginfo_t* info, void* context) {
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler == SIG_IGN) return;
  if (before.sa_handler != SIG_DFL) return before.sa_handler(signal);
  if (signal == SIGURG) return;  // ignored by default
  sigaction(signal, &before, nullptr);  // The signal will come again, and end the process.
  if (info->si_code <= 0) raise(signal);
}

[[noreturn]] void jump(Slot* s, Why why) {
  s->why = why;
  s->running = 0;
  _longjmp(s->back, 1);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  Slot* s = mine;
  if (!s || !s->running || info->si_code <= 0)  // <= 0: kill() has sent it
    return pass_on(before_fault[signal], signal, info, context);
  unsigned long long stack = 0;
  s->fault = MinidlFault{signal, 0, (unsigned long long)info->si_addr, 0, false};
  registers(context, s->fault, stack);
  s->fault.stack = stack;
#ifdef SI_KERNEL
  // the processor does not report an address with more than 47 bits
  if (info->si_code == SI_KERNEL) s->fault.address = ~0ull;
#endif
  bool memory = signal == SIGSEGV || signal == SIGBUS;
  s->fault.stack_overflow = memory && s->fault.address - stack + (1 << 20) < (2 << 20);
  jump(s, FAULT);
}

void on_urge(int signal, siginfo_t* info, void* context) {
  Slot* s = mine;
  if (!s || !s->running || !s->stop_launch || s->stop_launch != s->launch)
    return pass_on(before_urg, signal, info, context);
  unsigned long long stack = 0;
  s->fault = MinidlFault{signal, 0, 0, 0, false};
  registers(context, s->fault, stack);
  jump(s, (Why)s->why);
}

void on_interrupt(int signal, siginfo_t* info, void* context) {
  interrupts = interrupts + 1;
  pass_on(before_int, signal, info, context);
}

void take(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction& before) {
  struct sigaction now = {};
  now.sa_sigaction = handler;
  // NODEFER: the handler does not return but jumps back, and the signal must be able to come again
  now.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | (signal == SIGINT ? 0 : SA_RESTART);
  sigemptyset(&now.sa_mask);
  struct sigaction old;
  sigaction(signal, nullptr, &old);
  if (old.sa_flags & SA_SIGINFO && old.sa_sigaction == handler) return;  // already ours
  // if Python has no handler, Ctrl-C must end the process or do nothing
  if (signal == SIGINT && (old.sa_handler == SIG_DFL || old.sa_handler == SIG_IGN)) return;
  before = old;
  if (signal == SIGINT) now.sa_flags |= old.sa_flags & SA_RESTART;
  sigaction(signal, &now, nullptr);
}

double clock_of(clockid_t id) {
  timespec t;
  return clock_gettime(id, &t) ? 0 : t.tv_sec + 1e-9 * t.tv_nsec;
}

double processor_seconds(Slot* s) {
#ifdef __APPLE__
  return clock_of(CLOCK_MONOTONIC);
#else
  clockid_t id;
  return pthread_getcpuclockid(s->thread, &id) ? 0 : clock_of(id);
#endif
}

void stop(Slot* s, Why why) {
  s->why = why;
  s->stop_launch = s->launch;
  take(SIGURG, on_urge, before_urg);
  pthread_kill(s->thread, SIGURG);
}

// Looks at all slots once. Returns true if any kernel runs.
bool look() {
  bool any = false;
  for (Slot* s = slots; s < slots + kSlots; ++s) {
    if (!s->claimed || !s->running) continue;
    any = true;
    unsigned launch = s->launch, progress = s->progress;
    if (launch != s->seen_launch || progress != s->seen_progress) {
      s->since = processor_seconds(s);
      if (launch != s->seen_launch) s->interrupted_at = 0;
      s->seen_launch = launch, s->seen_progress = progress;
    } else if (limit_seconds > 0 && processor_seconds(s) - s->since > limit_seconds) {
      stop(s, ENDLESS);
    }
    if (s->interrupts != interrupts) {
      double now = clock_of(CLOCK_MONOTONIC);
      // After Ctrl-C the launch first gets time to end by itself, because the user's handler may
      // save something.
      if (s->interrupted_at == 0) s->interrupted_at = now;
      else if (now - s->interrupted_at > kGraceSeconds) stop(s, INTERRUPTED);
    }
  }
  if (any) take(SIGINT, on_interrupt, before_int);
  return any;
}

void* watch(void*) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (int idle = 0;;) {
    idle = look() ? 0 : idle + 1;
    double seconds = idle > 20 ? kDozeSeconds : kPollSeconds;
    timeval now;
    gettimeofday(&now, nullptr);
    double until = now.tv_sec + 1e-6 * now.tv_usec + seconds;
    timespec at = {(time_t)until, (long)((until - (time_t)until) * 1e9)};
    pthread_mutex_lock(&watch_mutex);
    dozing = idle > 20;
    pthread_cond_timedwait(&wake, &watch_mutex, &at);
    dozing = 0;
    pthread_mutex_unlock(&watch_mutex);
  }
}

// Called when a thread ends. Frees the thread's slot and signal stack for the next thread.
void release(void* slot) {
  Slot* s = (Slot*)slot;
  if (s->signal_stack) {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    none.ss_size = kSignalStackBytes;  // macOS checks the size even here
    sigaltstack(&none, nullptr);
    free(s->signal_stack);
  }
  mine = nullptr;
  s->claimed = 0;
}

// If the main thread's stack has no limit (`ulimit -s unlimited`), an endless recursion takes all
// memory. So this function puts a page without access below the stack, kStackBytes from its present
// end.
void bound_stack() {
#ifdef MAP_FIXED_NOREPLACE
  rlimit limit;
  if (getpid() != gettid() || getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur <= kStackBytes)
    return;
  size_t page = sysconf(_SC_PAGESIZE), here = (size_t)&limit;
  mmap((void*)((here - kStackBytes) & ~(page - 1)), page, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
#endif
}

// Called for the first launch on a CPU thread. Takes a slot, and makes a stack for signals.
void claim() {
  for (Slot* s = slots; s < slots + kSlots && !mine; ++s)
    if (!s->claimed && __sync_bool_compare_and_swap(&s->claimed, 0, 1)) mine = s;
  if (!mine) return;  // more threads than slots: this one runs without a guard
  mine->running = 0;
  mine->thread = pthread_self();
  mine->signal_stack = nullptr;
  pthread_setspecific(at_thread_end, mine);
  stack_t there;
  if (!sigaltstack(nullptr, &there) && there.ss_flags & SS_DISABLE) {
    stack_t ours = {};
    ours.ss_sp = mine->signal_stack = malloc(kSignalStackBytes);
    ours.ss_size = kSignalStackBytes;
    sigaltstack(&ours, nullptr);
  }
  bound_stack();
  pthread_mutex_lock(&watch_mutex);
  if (!watching) {
    watching = true;
    pthread_t thread;
    pthread_attr_t options;
    pthread_attr_init(&options);
    pthread_attr_setstacksize(&options, 256 << 10);
    if (!pthread_create(&thread, &options, watch, nullptr)) pthread_detach(thread);
    pthread_attr_destroy(&options);
  }
  pthread_mutex_unlock(&watch_mutex);
}

void after_fork() {  // only the thread that called fork exists in the child
  for (Slot* s = slots; s < slots + kSlots; ++s)
    if (s != mine) s->claimed = s->running = 0;
  watching = false;
  dozing = 0;
  pthread_mutex_init(&watch_mutex, nullptr);
  pthread_cond_init(&wake, nullptr);
}

__attribute__((constructor)) void start() {
  pthread_key_create(&at_thread_end, release);
  pthread_atfork(nullptr, nullptr, after_fork);
  if (const char* limit = getenv("MINIDL_WATCHDOG")) limit_seconds = atof(limit);
  for (int signal : kFaults) take(signal, on_fault, before_fault[signal]);
  take(SIGINT, on_interrupt, before_int);
}

const char kAdvice[] = "Run the script under `minidl kernel run` to see the line";

void tell(Slot* s) {
  char who[200] = "", text[1400];
  if (minidl_in_fibres())
    snprintf(who, sizeof who, "block (%u, %u, %u), thread (%u, %u, %u): ", blockIdx.x, blockIdx.y,
             blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  const MinidlFault& f = s->fault;
  switch (s->why) {
    case SENTENCE: snprintf(text, sizeof text, "%s%s", who, s->sentence); break;
    case INTERRUPTED: snprintf(text, sizeof text, "%sstopped by Ctrl-C", who); break;
    case ENDLESS:
      snprintf(text, sizeof text,
               "%sstopped after %g s of processor time without an end: an endless loop, or a wait "
               "for a thread that never comes? %s (MINIDL_WATCHDOG sets another limit, in seconds; "
               "0: none)", who, limit_seconds, kAdvice);
      break;
    default:
      if (f.signal == SIGFPE)
        snprintf(text, sizeof text, "%san integer is divided by zero. %s", who, kAdvice);
      else if (f.stack_overflow)
        snprintf(text, sizeof text, "%sthe stack of a thread is full: a recursion without end, or "
                 "local arrays of more than 512 KiB? %s", who, kAdvice);
      else if (f.signal == SIGILL || f.signal == SIGTRAP)
        snprintf(text, sizeof text, "%sit ran into a trap. %s", who, kAdvice);
      else if (f.address < 65536)
        snprintf(text, sizeof text, "%sit uses a NULL pointer (address %#llx). %s", who, f.address,
                 kAdvice);
      else if (f.address == ~0ull)
        snprintf(text, sizeof text, "%sit reads or writes an address far from everything, where "
                 "there is no array. %s", who, kAdvice);
      else
        snprintf(text, sizeof text, "%sit reads or writes address %#llx, where there is no array. "
                 "%s", who, f.address, kAdvice);
  }
  minidl_refuse(text);
}

}  // namespace

bool minidl_guarded(void (*body)(const void*, long long, long long), const void* context,
                    long long begin, long long end) {
  if (!mine) claim();
  Slot* s = mine;
  if (!s || s->running) return body(context, begin, end), true;
  if (_setjmp(s->back)) {
    s = mine;
    tell(s);
    minidl_abandon_fibres();
    return false;
  }
  s->launch = s->launch + 1;
  s->interrupts = interrupts;
  s->fault.signal = 0;
  s->running = 1;
  if (dozing) pthread_cond_signal(&wake);
  body(context, begin, end);
  s->running = 0;
  return true;
}

void minidl_progress() {
  if (mine) mine->progress = mine->progress + 1;
}

MINIDL_EXPORT unsigned minidl_progress_count() { return mine ? mine->progress : 0; }
MINIDL_EXPORT void minidl_pc_of(void* context, MinidlFault* f, unsigned long long* stack) {
  registers(context, *f, *stack);
}

void minidl_end_launch(const char* sentence) {
  if (!mine || !mine->running) {
    fprintf(stderr, "minidl: %s\n", sentence);
    abort();
  }
  snprintf(mine->sentence, sizeof mine->sentence, "%s", sentence);
  jump(mine, SENTENCE);
}

MINIDL_EXPORT MinidlFault minidl_last_fault() { return mine ? mine->fault : MinidlFault{}; }
MINIDL_EXPORT void minidl_set_watchdog(double seconds) { limit_seconds = seconds; }

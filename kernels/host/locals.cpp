// Checks local arrays, in the check form. Each array lies between two guards, and a list tells
// which of its bytes were written. minidl/cuda/checks/hooks.py replaces `float sum[4];` by
//
//     MinidlLocal<float[4]> minidl_sum("sum"); auto& sum = minidl_sum.a;
//
//     | guard | sum[0] sum[1] sum[2] sum[3] | guard |     sum[4] through any pointer hits a guard
//
// A kernel may declare an array in inner braces, and use it after the braces through a pointer: {
// float four[4]; p = four; } p[0]. To find such an error, the array is remembered until its
// function returns. Until then its memory is not used for other variables (-fstack-reuse=none).
//
// Test: tests/cuda/checks/test_check_child.py
#include "locals.h"

#include "session.h"

namespace {

const int kMaxLocals = 32;  // most variables of a thread at a time. More are not checked
const int kMaxEnded = 16;   // most variables of a thread that are remembered after their braces
const u64 kGuard = 64;      // as in check.h

struct Local {
  u64 begin, bytes;
  const char* name;
  int element;
  unsigned char* written;  // null if the variable gets its values at its declaration
  int elements() const { return bytes == element ? 0 : bytes / element; }  // 0: not an array
};

// depth: the number of functions that were running at the declaration.
struct Ended {
  u64 begin, bytes;
  const char* name;
  int element, depth;
  int elements() const { return bytes == element ? 0 : bytes / element; }
};

struct Locals {
  Local all[kMaxLocals];
  int n;
  Ended ended[kMaxEnded];
  int n_ended, depth;  // depth: the number of running functions
} of_thread[1024];

Locals& mine() { return of_thread[running_thread() - clocks.first]; }

}  // namespace

void minidl_locals_begin() {
  for (Locals& l : of_thread) {
    for (int i = 0; i < l.n; ++i) free(l.all[i].written);
    l.n = l.n_ended = l.depth = 0;
  }
}

void minidl_function(bool begins) {
  Locals& l = mine();
  if (begins) {
    l.depth++;
    return;
  }
  l.depth--;
  while (l.n_ended && l.ended[l.n_ended - 1].depth > l.depth) l.n_ended--;
}

void minidl_local_access(u64 address, unsigned size, How how, unsigned where) {
  Locals& l = mine();
  for (int i = l.n - 1; i >= 0; --i) {
    Local& v = l.all[i];
    if (address - (v.begin - kGuard) >= v.bytes + 2 * kGuard) continue;
    if (address < v.begin || address + size > v.begin + v.bytes) {
      Finding& f = add_finding(LOCAL_OUTSIDE, where, 0, -1, 0);
      if (f.count == 1) {
        f.offset = (long long)(address - v.begin) / v.element - (address < v.begin);
        f.size = v.elements(), f.how = how, f.text = (u64)v.name;
      }
      return;
    }
    if (!v.written) return;
    u64 at = address - v.begin;
    if (how == WRITE) {
      memset(v.written + at, 1, size);
      return;
    }
    for (unsigned k = 0; k < size; ++k) {
      if (v.written[at + k]) continue;
      Finding& f = add_finding(LOCAL_UNWRITTEN, where, 0, -1, 0);
      if (f.count == 1) {
        f.offset = at / v.element, f.size = v.elements();
        f.how = how, f.text = (u64)v.name;
      }
      return;
    }
    if (how == ATOMIC) memset(v.written + at, 1, size);
    return;
  }
  for (int i = l.n_ended - 1; i >= 0; --i) {
    const Ended& v = l.ended[i];
    if (address - v.begin >= v.bytes) continue;
    Finding& f = add_finding(LOCAL_ENDED, where, 0, -1, 0);
    if (f.count == 1) {
      f.offset = (address - v.begin) / v.element, f.size = v.elements();
      f.how = how, f.text = (u64)v.name;
    }
    return;
  }
}

MINIDL_EXPORT void minidl_local_begins(const char* name, void* p, u64 bytes, int element,
                                       int has_values) {
  if (!active) return;
  Locals& l = mine();
  for (int i = 0; i < l.n_ended;)  // forgets a variable that a loop declares again
    if (l.ended[i].begin - (u64)p < bytes || (u64)p - l.ended[i].begin < l.ended[i].bytes)
      memmove(&l.ended[i], &l.ended[i + 1], (--l.n_ended - i) * sizeof(Ended));
    else
      ++i;
  if (l.n == kMaxLocals) return;
  unsigned char* written = has_values ? nullptr : (unsigned char*)calloc(bytes, 1);
  l.all[l.n++] = Local{(u64)p, bytes, name, element, written};
}

MINIDL_EXPORT void minidl_local_ends(void* p, int inner) {
  if (!active) return;
  Locals& l = mine();
  for (int i = l.n - 1; i >= 0; --i)
    if (l.all[i].begin == (u64)p) {
      const Local& v = l.all[i];
      if (inner && l.n_ended == kMaxEnded)
        memmove(&l.ended[0], &l.ended[1], --l.n_ended * sizeof(Ended));
      if (inner) l.ended[l.n_ended++] = Ended{v.begin, v.bytes, v.name, v.element, l.depth};
      free(v.written);
      l.all[i] = l.all[--l.n];
      return;
    }
}

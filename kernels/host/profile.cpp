// The profile joins the accesses of a warp's threads that a GPU makes in one memory request.
//
//     thread 0  x[0] ... x[32] ...       Between two barriers, each thread numbers its executions
//     thread 1  x[1] ... x[33] ...       of an instruction. Executions with the same number, in one
//     thread 2  x[2] ... x[34] ...       warp, are one request: here x[0..31], then x[32..63].
//
//     global   sectors of 32 bytes that the request touches: 4 for 32 neighbouring floats, 32 for
//              floats that are 32 bytes or more apart
//     shared   wavefronts. In one wavefront each of the 32 banks delivers one word of 4 bytes. So a
//              request needs a wavefront for each different word in its busiest bank. Accesses of 8
//              bytes are served by half warps, of 16 bytes by quarter warps.
//     branch   diverged: threads of one request went to different places
//
// In this engine the threads of a block run one after the other. A warp's requests stay open until
// another warp runs, because more threads of the warp may join them.
// Source: CUDA programming guide, "Global Memory", "Shared Memory" (compute capability 5.0 and up).
// Test: tests/cuda/checks/test_profile.py   Tutorial: tutorials/03_kernel_tour.py
#include "profile.h"

#include <stdlib.h>
#include <string.h>

#include "session.h"

namespace {

struct Request {
  // mask: the lanes of the request. others: for a branch, the lanes that took another way than the
  // first lane.
  unsigned mask, others;
  u64 address[32];  // in a branch, address[0] is where the first lane went
};

const int kSites = 2048, kMaxOpen = 1 << 15;

struct Site {
  unsigned place;
  int what, region;
  unsigned size;
  unsigned visits[32];
  Request* open;
  int n, capacity;
  ProfileRow sum;
  bool used;
} sites[kSites];

Profile* profile;
int warp_now = -1, epoch;
unsigned compared[1024];  // for each thread: its last comparison, if no jump has followed

int distinct(u64* values, int n) {
  int kept = 0;
  for (int i = 0; i < n; ++i) {
    bool seen = false;
    for (int k = 0; k < kept && !seen; ++k) seen = values[k] == values[i];
    if (!seen) values[kept++] = values[i];
  }
  return kept;
}

// Returns how many sectors of 32 bytes the request touches.
int sectors(const Request& r, unsigned size) {
  u64 all[32 * 2];
  int n = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (r.mask >> lane & 1) {
      all[n++] = r.address[lane] / 32;
      if ((r.address[lane] + size - 1) / 32 != all[n - 1]) all[n++] = (r.address[lane] + size - 1) / 32;
    }
  return distinct(all, n);
}

int bytes_wanted(const Request& r, unsigned size) {
  u64 all[32];
  int n = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (r.mask >> lane & 1) all[n++] = r.address[lane];
  return distinct(all, n) * (int)size;
}

int wavefronts(const Request& r, unsigned size) {
  const int group = size <= 4 ? 32 : size <= 8 ? 16 : 8;
  int total = 0;
  for (int first = 0; first < 32; first += group) {
    u64 words[32 * 4];
    int n = 0, per_bank[32] = {}, most = 0;
    for (int lane = first; lane < first + group; ++lane)
      if (r.mask >> lane & 1)
        for (u64 w = r.address[lane] / 4; w <= (r.address[lane] + size - 1) / 4; ++w) words[n++] = w;
    n = distinct(words, n);
    for (int i = 0; i < n; ++i)
      if (++per_bank[words[i] % 32] > most) most = per_bank[words[i] % 32];
    total += most;
  }
  return total;
}

void close(Site& s) {
  for (int i = 0; i < s.n; ++i) {
    const Request& r = s.open[i];
    u64 units, best = 0;
    if (s.what == BRANCH) {
      units = r.others != 0;
    } else {
      u64 bytes = bytes_wanted(r, s.size);
      const bool shared = s.what >= SHARED_LOAD;
      units = shared ? wavefronts(r, s.size) : sectors(r, s.size);
      best = shared ? (bytes + 127) / 128 : (bytes + 31) / 32;
    }
    s.sum.requests++;
    s.sum.lanes += __builtin_popcount(r.mask);
    s.sum.units += units;
    s.sum.best += best;
    if (units > s.sum.worst) s.sum.worst = units;
  }
  s.n = 0;
  memset(s.visits, 0, sizeof s.visits);
}

void close_all() {
  for (Site& s : sites)
    if (s.n) close(s);
  warp_now = -1;
}

int thread_now() { return running_thread() - clocks.first; }

Request* request(unsigned place, int what, int region, unsigned size, int thread) {
  if (thread / 32 != warp_now) {
    if (warp_now >= 0) close_all();
    warp_now = thread / 32;
  }
  unsigned at = (place * 2654435761u + what * 97u) % kSites;
  for (int step = 0; sites[at].used && (sites[at].place != place || sites[at].what != what); ++step) {
    if (step == kSites - 1) return nullptr;
    at = (at + 1) % kSites;
  }
  Site& s = sites[at];
  if (!s.used) {
    s.used = true;
    s.place = place, s.what = what, s.region = region, s.size = size;
  }
  unsigned visit = s.visits[thread % 32]++;
  if (visit >= (unsigned)kMaxOpen) {
    profile->cut = 1;
    return nullptr;
  }
  if (visit >= (unsigned)s.n) {
    if (s.n == s.capacity) {
      s.capacity = s.capacity ? 2 * s.capacity : 4;
      s.open = (Request*)realloc(s.open, s.capacity * sizeof(Request));
    }
    s.open[s.n++] = Request{};
  }
  return &s.open[visit];
}

void jumped(unsigned to) {
  if (!profile || !active) return;
  int thread = thread_now();
  unsigned from = compared[thread];
  if (!from) return;
  compared[thread] = 0;
  Request* r = request(from, BRANCH, -1, 0, thread);
  if (!r) return;
  if (!r->mask) r->address[0] = to;
  else if (r->address[0] != to) r->others |= 1u << thread % 32;
  r->mask |= 1u << thread % 32;
}

void compare_at(void* return_address) {
  if (profile && active) compared[thread_now()] = (unsigned)((u64)return_address - code_base);
}

}  // namespace

void minidl_profile_begin(Profile* p) {
  profile = p;
  epoch = 0;
}

void minidl_profile_end() {
  if (!profile) return;
  close_all();
  for (Site& s : sites) {
    if (!s.used || profile->n_rows == kMaxRows) continue;
    ProfileRow& row = profile->rows[profile->n_rows++];
    row = s.sum;
    row.place = s.place, row.what = s.what, row.region = s.region, row.size = s.size;
  }
  profile = nullptr;
}

void minidl_profile_barrier(bool new_block) {
  if (!profile) return;
  close_all();
  bool first = !blockIdx.x && !blockIdx.y && !blockIdx.z;
  if (new_block) epoch = 0, memset(compared, 0, sizeof compared);
  else if (first) epoch++;
}

void minidl_profile_access(int r, u64 address, unsigned size, How how, unsigned where) {
  if (!profile || how == ATOMIC_READ) return;
  const Region& region = regions[r];
  int thread = thread_now();
  int what = (region.shared ? SHARED_LOAD : GLOBAL_LOAD) + (how == WRITE ? 1 : how == ATOMIC ? 2 : 0);
  if (Request* q = request(where, what, r, size, thread)) {
    q->mask |= 1u << thread % 32;
    q->address[thread % 32] = address;
  }
  if (!region.shared || blockIdx.x || blockIdx.y || blockIdx.z || epoch >= kMaxEpochs) return;
  int k = 0;
  while (k < profile->n_pictures && profile->regions[k] != r) ++k;
  if (k == kMaxPictures) return;
  if (k == profile->n_pictures) profile->regions[profile->n_pictures++] = r;
  if (epoch >= profile->n_epochs) profile->n_epochs = epoch + 1;
  const Variable& v = outcome->variables[r];
  u64 element = v.element > 0 ? v.element : 4, n = region.bytes / element;
  u64 i = (address - region.begin) / element, columns = n < kColumns ? n : kColumns;
  profile->picture[k][epoch][n ? i * columns / n : 0] |= how == READ ? 1 : how == WRITE ? 2 : 3;
}

// ---- called by a kernel that is compiled with -fsanitize-coverage ----

#define HERE __builtin_return_address(0)
MINIDL_EXPORT void __sanitizer_cov_trace_pc() { jumped((unsigned)((u64)HERE - code_base)); }
#define COMPARED(NAME, T) \
  MINIDL_EXPORT void __sanitizer_cov_trace_##NAME(T, T) { compare_at(HERE); }
COMPARED(cmp1, unsigned char) COMPARED(cmp2, unsigned short) COMPARED(cmp4, unsigned)
COMPARED(cmp8, u64) COMPARED(const_cmp1, unsigned char) COMPARED(const_cmp2, unsigned short)
COMPARED(const_cmp4, unsigned) COMPARED(const_cmp8, u64) COMPARED(cmpf, float)
COMPARED(cmpd, double)
MINIDL_EXPORT void __sanitizer_cov_trace_switch(u64, void*) { compare_at(HERE); }

// The declarations that check.cpp and profile.cpp share. The profile shows which memory requests a
// GPU makes for the accesses of a kernel. minidl/cuda/checks/profile.py declares the structs of
// this file for Python, with the same layouts. Change the two files together.
#pragma once
#include "watch.h"

enum { GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC, SHARED_LOAD, SHARED_STORE, SHARED_ATOMIC, BRANCH };

const int kMaxRows = 1024, kMaxEpochs = 48, kMaxPictures = 6, kColumns = 64;

// The counts of one instruction, added over all its executions by all warps.
struct ProfileRow {
  unsigned place;
  int what, region, size;
  u64 requests;  // warp instructions
  u64 lanes;     // threads in these requests
  u64 units;     // global: sectors of 32 bytes; shared: wavefronts; branch: diverged requests
  u64 best;      // the fewest units that the requested bytes need
  u64 worst;     // the most units of one request
};

struct Profile {
  int n_rows, n_epochs, n_pictures, cut;
  ProfileRow rows[kMaxRows];
  int regions[kMaxPictures];
  // The accesses of block 0. Bit 0: read, bit 1: written. A row is the time from one barrier to the
  // next, and a column is a part of the array.
  unsigned char picture[kMaxPictures][kMaxEpochs][kColumns];
};

void minidl_profile_begin(Profile*);
void minidl_profile_end();
void minidl_profile_barrier(bool new_block);
void minidl_profile_access(int region, u64 address, unsigned size, How how, unsigned where);

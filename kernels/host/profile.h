// The seam between the check form and the profile (profile.cpp): what a GPU's memory would make of
// the accesses. Layouts known to minidl/cuda/checks/profile.py.
#pragma once
#include "watch.h"

enum { GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC, SHARED_LOAD, SHARED_STORE, SHARED_ATOMIC, BRANCH };

const int kMaxRows = 1024, kMaxEpochs = 48, kMaxPictures = 6, kColumns = 64;

// All warps' executions of one instruction.
struct ProfileRow {
  unsigned place;
  int what, region, size;
  u64 requests;  // warp instructions
  u64 lanes;     // threads in them
  u64 units;     // global: sectors of 32 bytes; shared: wavefronts; branch: that diverged
  u64 best;      // the fewest units for the bytes that were asked for
  u64 worst;     // of one request
};

struct Profile {
  int n_rows, n_epochs, n_pictures, cut;
  ProfileRow rows[kMaxRows];
  int regions[kMaxPictures];
  // of block 0: bit 0 read, bit 1 written, by time between barriers and part of the array
  unsigned char picture[kMaxPictures][kMaxEpochs][kColumns];
};

void minidl_profile_begin(Profile*);
void minidl_profile_end();
void minidl_profile_barrier(bool new_block);
void minidl_profile_access(int region, u64 address, unsigned size, How how, unsigned where);

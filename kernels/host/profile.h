// The seam between the check form and the profile (profile.cpp): what a GPU's memory would make of
// the accesses.
#pragma once
#include "watch.h"

void minidl_profile_begin();
void minidl_profile_end();
void minidl_profile_barrier();  // a barrier of the block, or a new block
void minidl_profile_access(int region, u64 address, unsigned size, How how, unsigned where);

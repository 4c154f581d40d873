// The functions that check.cpp and locals.cpp call in each other. They watch the local arrays of a
// kernel in the check form.
#pragma once
#include "watch.h"

void minidl_locals_begin();  // a block begins: no thread has local arrays
void minidl_local_access(u64 address, unsigned size, How how, unsigned where);
void minidl_function(bool begins);  // the running thread calls a function, or returns from one

// The functions by which check.cpp and locals.cpp call each other. In the check form they watch the
// local arrays of a kernel.
#pragma once
#include "watch.h"

void minidl_locals_begin();  // a block begins: no thread has local arrays
void minidl_local_access(u64 address, unsigned size, How how, unsigned where);
void minidl_function(bool begins);  // the running thread calls a function, or returns from one

// The seam between the check form and its local arrays (locals.cpp).
#pragma once
#include "watch.h"

void minidl_locals_begin();  // a block begins: no thread has any
void minidl_local_access(u64 address, unsigned size, How how, unsigned where);
void minidl_function(bool begins);  // the running thread calls one, or returns from it

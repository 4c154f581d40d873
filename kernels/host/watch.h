// The seam within the check form's runtime: sanitizer.cpp tells check.cpp what the running CUDA
// thread does. return_address: of the call that the compiler put there, the place in the code.
#pragma once

typedef unsigned long long u64;

enum How { READ = 0, WRITE = 1, ATOMIC = 2, ATOMIC_READ = 3 };  // known to minidl/cuda/checks/sentences.py

void minidl_access(u64 address, unsigned size, How how, void* return_address);
void minidl_fence(int kind);  // 1: __threadfence(), 2: __threadfence_block()
// array, type: the compiler's names. These three end the launch.
void minidl_bad_index(long long index, const char* array, void* return_address);
void minidl_misaligned(u64 address, unsigned alignment, const char* type, void* return_address);
void minidl_division_by_zero(void* return_address);

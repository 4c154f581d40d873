// sanitizer.cpp calls these functions of check.cpp. They report what the running CUDA thread does.
// return_address: the address after the call that the compiler inserted into the kernel. It tells
// the place in the kernel's code.
#pragma once

typedef unsigned long long u64;

// The kinds of access. minidl/cuda/checks/sentences.py has the same values. Change the two files
// together.
enum How { READ = 0, WRITE = 1, ATOMIC = 2, ATOMIC_READ = 3 };

void minidl_called(bool begins);  // a function begins or ends
void minidl_access(u64 address, unsigned size, How how, void* return_address);
// Reports an atomicCAS: an exchange that happens only if the old value is the expected value.
void minidl_compare_exchange(u64 address, unsigned size, void* return_address);
void minidl_volatile(u64 address, unsigned size, How how, void* return_address);
void minidl_fence(int kind);  // 1: __threadfence(), 2: __threadfence_block()
void minidl_bad_shift(long long by, void* return_address);
// The functions from here on end the launch. array, type: names from the compiler.
void minidl_bad_index(long long index, const char* array, void* return_address);
void minidl_misaligned(u64 address, unsigned alignment, const char* type, void* return_address);
void minidl_past_object(u64 address, const char* type, void* return_address);
void minidl_division_by_zero(void* return_address);

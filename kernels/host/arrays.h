// A NumPy array as C sees it: id(array) in Python is the address of this struct.
//
// These are the first fields of PyArrayObject in NumPy's C API. All versions since 1.7 have the
// same fields. Python compares a few fields once, because another Python could have another layout.
// Used by: arrays.cpp, window.cpp (each is in a library of its own, so each has the function below)
#pragma once

#include "runtime.h"

struct Array {
  long references;
  const void* type;
  void* elements;
  int n_dims;
  void *shape, *strides, *base;
  const void* dtype;
  int flags;
};

// Returns 1 if this Python and this NumPy have the layout of Array.
MINIDL_EXPORT int minidl_knows_arrays(const Array* a, const void* type, const void* elements,
                                      const void* dtype, int flags) {
  return a->type == type && a->elements == elements && a->dtype == dtype && a->flags == flags;
}

// A NumPy array as C sees it: id(array) in Python is the address of this struct.
//
// These are the first fields of PyArrayObject in NumPy's C API. All versions since 1.7 have the
// same fields. Python compares a few fields once, because another Python could have another layout.
// Used by: arrays.cpp, window.cpp
#pragma once

struct Array {
  long references;
  const void* type;
  void* elements;
  int n_dims;
  void *shape, *strides, *base;
  const void* dtype;
  int flags;
};

"""Finds the variables of a file outside of its functions: __device__, __managed__, __constant__.

    __device__ float table[4][8];   ->   a NumPy array in the variable's own memory

These variables keep their values between launches. So kernels of one file that use such variables
share one library.
Test: tests/cuda/host/test_words.py
"""

import ctypes
import re

import numpy as np

from minidl.cuda.host.scan import match_bracket, split_arguments

_MARK = re.compile(r"\b__(device|managed|constant)__\b")


class Variable(ctypes.Structure):  # has the layout of MinidlVariable in kernels/host/variables.h
    pass


Variable._fields_ = [
    ("begin", ctypes.c_ulonglong), ("n_bytes", ctypes.c_ulonglong), ("name", ctypes.c_char_p),
    *((n, ctypes.c_int) for n in "element rows columns is_const".split()),
    ("type", ctypes.c_char_p), ("next", ctypes.POINTER(Variable))]


def declared(source):
    """Returns the variables in a Source: [(offset where the declaration ends, name, is_const)].
    is_const is a number, as in kernels/host/variables.h."""
    found = []
    functions = {d.head for d in source.functions}
    for d in source.pieces:
        text = source.blank[d.begin : d.end]
        mark = _MARK.search(text)
        if (not mark or d.begin in functions or not text.rstrip().endswith(";")
                or re.match(r"\s*(extern|template|typedef|using|friend)\b", text)):
            continue
        plain = re.sub(r"(__align__|alignas|__attribute__)\s*\(+[^)]*\)+", " ", text)
        kind = re.search(r"\b(struct|class|union|enum)\b[^;{=(]*\{", plain)
        if kind:  # the variable is declared together with its type
            brace = plain.index("{", kind.start())
            plain = plain[match_bracket(plain, brace) + 1 :]
        # Only the words after the last star count, because a variable `const float* p` may change.
        words = plain.split("*")[-1].split("=")[0]
        is_const = 2 if re.search(r"\bconst(expr)?\b", words) else int(mark[1] == "constant")
        for declarator in split_arguments(plain.rstrip().rstrip(";")):
            declarator = re.split(r"[={]", declarator)[0]
            pointer = re.search(r"\(\s*\*\s*(?:const\s+)?(\w+)", declarator)
            name = pointer or re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", declarator)
            if "(" in declarator and not pointer:
                break  # a function that is only declared
            if name:
                found.append((d.end, name[1], is_const))
    return found


def of(library):
    """Returns {name: Variable} for a compiled library."""
    library.minidl_variables.restype = ctypes.POINTER(Variable)
    found, v = {}, library.minidl_variables()
    while v:
        found.setdefault(v.contents.name.decode(), v.contents)
        v = v.contents.next
    return dict(reversed(found.items()))


def array(v):
    """Returns a NumPy array in the memory of the Variable. If NumPy has no dtype for the variable's
    type, the elements of the array are bytes."""
    shape = (v.n_bytes,)
    dtype = np.dtype(v.type.decode() or "u1")
    if v.type:
        n = v.n_bytes // dtype.itemsize
        shape = (n,) if v.columns else ()
        if v.rows > 0:
            rows = v.rows
            pages = n // (rows * v.columns)
            shape = (pages, rows, v.columns) if pages > 1 else (rows, v.columns)
    memory = (ctypes.c_uint8 * v.n_bytes).from_address(v.begin)
    values = np.frombuffer(memory, dtype).reshape(shape)
    values.flags.writeable = v.is_const < 2
    return values

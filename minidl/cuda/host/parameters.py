"""Reads the parameters of a kernel: their C types, and the matching NumPy dtypes.

    const float* __restrict__ x   ->   Parameter x: a pointer to float32, const
    unsigned n                   ->  Parameter n: a scalar, uint32, letter "I" of the struct module

Test: tests/cuda/host/test_source.py
"""

import re
from dataclasses import dataclass

# C's scalar types: (letter of the struct module, NumPy dtype).
SCALARS = {
    "float": ("f", "f4"), "double": ("d", "f8"), "__half": ("e", "f2"), "bool": ("?", "?"),
    "__nv_bfloat16": ("H", "u2"),  # NumPy has no such type, so the bits are passed as uint16
    "char": ("b", "i1"), "signed char": ("b", "i1"), "unsigned char": ("B", "u1"),
    "short": ("h", "i2"), "unsigned short": ("H", "u2"),
    "int": ("i", "i4"), "unsigned int": ("I", "u4"),
    "long": ("q", "i8"), "unsigned long": ("Q", "u8"),
    "long long": ("q", "i8"), "unsigned long long": ("Q", "u8"),
}  # fmt: skip
SYNONYMS = {
    "half": "__half", "unsigned": "unsigned int", "uint": "unsigned int", "signed": "int",
    "size_t": "unsigned long", "ssize_t": "long", "ptrdiff_t": "long", "clock_t": "long",
    "intptr_t": "long", "uintptr_t": "unsigned long", "int8_t": "signed char",
    "uint8_t": "unsigned char", "int16_t": "short", "uint16_t": "unsigned short",
    "int32_t": "int", "uint32_t": "unsigned int", "int64_t": "long long",
    "uint64_t": "unsigned long long", "short int": "short", "unsigned short int": "unsigned short",
    "long int": "long", "unsigned long int": "unsigned long",
    "long long int": "long long", "unsigned long long int": "unsigned long long",
    "nv_bfloat16": "__nv_bfloat16", "half2": "__half2", "nv_bfloat162": "__nv_bfloat162",
    "uchar": "unsigned char", "ushort": "unsigned short", "ulong": "unsigned long",
}  # fmt: skip
VECTOR = re.compile(r"(u?char|u?short|u?int|u?long|float|double)([1234])$")  # float4, int2, ...


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    kind: 'pointer', 'scalar', 'struct' (a struct that is passed by value), or 'other' (a reference
    or a function). For a struct, a launch packs the address of a copy."""

    name: str
    text: str  # the parameter as the user wrote it, for messages
    kind: str
    ctype: str  # canonical C name of the value's type, or of the type that a pointer points to
    dtype: str | None  # NumPy dtype of the elements. None for void* (any dtype) and for structs
    code: str = "Q"  # letter of Python's module `struct`
    const: bool = False
    lanes: int = 1  # numbers in an element: 4 for float4*

    @property
    def has_struct(self):
        """True if the parameter is a struct or a pointer to structs."""
        return self.dtype is None and self.ctype != "void"


def canonical(name, types):
    """Returns the canonical C name of a type. Replaces typedefs, macros and template parameters.
    types: {name: the type that the name stands for}."""
    for _ in range(20):  # follows typedefs. A chain of more than 20 typedefs is a cycle
        words = [w for w in name.replace("std::", " ").split()
                 if w not in ("const", "volatile", "struct", "typename")]
        if "unsigned" in words[1:]:  # such as `int unsigned`
            words.remove("unsigned")
            words.insert(0, "unsigned")
        name = " ".join(words)
        if name in SCALARS:
            return name
        target = types.get(name) if name in types else SYNONYMS.get(name)
        if target is None or str(target) == name:
            # in an instance for double, Pair<T> becomes Pair<double>
            begin, sign, rest = name.partition("<")
            return begin + sign + re.sub(r"\w+", lambda m: str(types.get(m[0], m[0])), rest)
        name = str(target)
    return name


def parse_parameter(text, types):
    """Returns the Parameter that the declaration `text` declares. types: {name: the type that the
    name stands for}."""
    text = " ".join(text.split("=")[0].split())
    plain = re.sub(r"\b(__restrict__|__restrict|restrict|__grid_constant__|register)\b", " ", text)
    array = re.search(r"\[[^\]]*\]\s*$", plain)
    if array:
        plain = plain[: array.start()]
    name = re.search(r"(\w+)\s*$", plain)
    base = plain[: name.start()] if name else plain
    stars = base.count("*") + bool(array)
    pointee = base.split("*")[0].replace("&", "")
    const = bool(re.search(r"\bconst\b", pointee))
    ctype = canonical(pointee, types)
    hidden = types.get(pointee.replace("const", "").strip(), "")  # a typedef may hide the star
    stars += str(hidden).count("*")
    name = name[1] if name else ""
    if stars > 1:  # Python passes a table of pointers as an array of uint64 addresses
        const = base.rstrip().split("*")[-2].strip() == "const"
        return Parameter(name, text, "pointer", "unsigned long long", "u8", const=const)
    vector = VECTOR.match(ctype)
    pair = {"__half2": "__half", "__nv_bfloat162": "__nv_bfloat16"}.get(ctype)
    scalar = SCALARS.get(pair or (canonical(vector[1], types) if vector else ctype))
    if stars and scalar:
        lanes = 2 if pair else int(vector[2]) if vector else 1
        return Parameter(name, text, "pointer", ctype, scalar[1], const=const, lanes=lanes)
    if stars and ctype == "void":
        return Parameter(name, text, "pointer", ctype, None, const=const)
    if scalar and not (stars or vector or pair):
        return Parameter(name, text, "scalar", ctype, scalar[1], code=scalar[0])
    if "&" in base or not re.fullmatch(r"[\w:<>, ]+", ctype):
        return Parameter(name, text, "other", ctype, None)
    return Parameter(name, text, "pointer" if stars else "struct", ctype, None, const=const)

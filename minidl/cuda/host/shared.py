"""Finds the __shared__ variables of a kernel's C++, and puts guards around them.

    __shared__ float s[30];   ->   a union of s and of a longer array of bytes

    | pattern | s[0] s[1] ... s[29] | pattern |     s[30] = x changes a pattern. The engine checks
                                                    the patterns when a block ends
                                                    (kernels/host/fibre.cpp)

The union has no name, so s is still a variable, and lambdas and sizeof work as before. The check
form needs no guards, because it checks every access. Code for clang has no guards. clang ignores
__thread for a union without a name, so with guards all blocks share s.
Test: tests/cuda/host/test_shared_guards.py
"""

import re
from dataclasses import dataclass

from minidl.cuda.host.scan import blank_out, functions, match_bracket, split_arguments


@dataclass(frozen=True)
class Declaration:
    """A statement `__shared__ float a[4], b;`.

    begin, end: offsets in the text.
    written:    the text of each variable, ["float a[4]", "b"].
    plain:      the same texts without initial values.
    names:      ["a", "b"]."""

    begin: int
    end: int
    written: list
    plain: list
    names: list


def declarations(code):
    """Returns the Declarations of __shared__ variables in `code`. The code must have no
    declarations with `extern`. The words of each declaration must be in the order of
    scan.shared_first."""
    found = []
    for m in re.finditer(r"\b__shared__\b", code):
        end = _end_of_statement(code, m.end())
        written = split_arguments(code[m.end() : end])
        plain = [d.split("=")[0].split("{")[0] for d in written]
        names = [re.search(r"(\w+)\s*\)?\s*(\[[^\]]*\]\s*)*$", d)[1] for d in plain]
        found.append(Declaration(m.start(), end + 1, written, plain, names))
    return found


def _end_of_statement(code, at):
    while code[at] != ";":
        at = match_bracket(code, at) if code[at] in "([{" else at
        at += 1
    return at


def with_guards(code):
    """Returns `code` with guards around every __shared__ variable of a function."""
    bodies = [f.body for f in functions(blank_out(code))[0]]
    out, at = [], 0
    for d in declarations(code):
        parts = _parts(code, d)
        if not parts or not any(begin <= d.begin < end for begin, end in bodies):
            continue
        new = "".join(
            f"static __thread MinidlBefore minidl_before_{name}; "
            f"static __thread union {{ {text}; "
            f"char minidl_guard_{name}[sizeof({name}) + MINIDL_GUARD_BYTES]; }}; "
            f"static __thread char minidl_after_{name}[MINIDL_GUARD_BYTES]; MINIDL_GUARD({name}) "
            for name, text in parts)
        lost_lines = "\n" * (code[d.begin : d.end].count("\n") - new.count("\n"))
        out += [code[at : d.begin], new, lost_lines]
        at = d.end
    return "".join([*out, code[at:]])


def _parts(code, d):
    """Returns [(name, declaration of this variable alone)], one pair for each variable of a
    Declaration. Returns [] if the declaration is too hard to split."""
    first = re.match(r"(.*?)\b\w+\s*(?:\[[^\]]*\]\s*)*$", d.plain[0], re.S)
    # A declaration is too hard to split if it has initial values, declares a type, or declares
    # several variables and one of them is a pointer.
    several_pointers = first and "*" in first[1] and len(d.plain) > 1
    if d.written != d.plain or not first or "(*" in first[1] or several_pointers:
        return []
    texts = [d.plain[0], *(first[1] + more for more in d.plain[1:])]
    return list(zip(d.names, texts, strict=True))

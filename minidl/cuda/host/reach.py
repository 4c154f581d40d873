"""Finds the code that a kernel can run: the declarations in a file that are reached by their names.

    struct Twice { __device__ float operator()(float x) const { return x * threadIdx.x; } };
    template <class F> __global__ void apply(float* y, F f) { ... f(x) ... }      apply<Twice>
        apply<Twice> names Twice. So apply can run the code of Twice, which uses threadIdx

To use a function, a type, a variable or an alias, C++ code must contain its name, or use other code
that contains this name. Only operators, and the functions begin and end of a range-based for loop,
are used without their names. So these are always reached. Code that is not reached certainly cannot
run. Code that is reached may run. If too much code is reached, the kernel is only slower, not
wrong.
Test: tests/cuda/host/test_reach.py
"""

import re
from dataclasses import dataclass

from minidl.cuda.host.scan import match_bracket

_WORD = re.compile(r"[A-Za-z_]\w*")
_SPACE = re.compile(r"(?:namespace(?:\s+[\w:]+)?|inline\s+namespace\s+\w+|extern\s*)\s*\{")
_TYPE = re.compile(r"\b(struct|class|union|enum)\b")
_TEMPLATE = re.compile(r"\btemplate\s*<[^;{]*?>\s*(?=\w)")
_ALWAYS = re.compile(r"\boperator\b|^\s*using\s+namespace\b|^\s*namespace\b|^\s*static_assert\b"
                     r"|\b(begin|end)\s*\(")
_COMMON = set("""const constexpr static inline extern typedef using template typename class struct
    union enum unsigned signed int float double char short long bool void auto volatile size_t
    namespace __device__ __global__ __host__ __constant__ __managed__ __shared__ __restrict__
    __forceinline__ __noinline__ __attribute__ __align__ __launch_bounds__ alignas public private
    return if for while sizeof decltype operator""".split())


@dataclass(frozen=True)
class Declaration:
    """One declaration of a file, outside of functions.

    begin, end: offsets in the text.
    names:      the declared names.
    words:      all words in the declaration.
    always:     True if the declaration is always reached, as an operator is."""

    begin: int
    end: int
    names: frozenset
    words: frozenset
    always: bool


def declarations(blank):
    """Returns the Declarations of a text without comments."""
    found, at = [], 0
    while True:
        while at < len(blank) and blank[at] in " \t\n\r\f\v;}":
            at += 1
        if at >= len(blank):
            return found
        if space := _SPACE.match(blank, at):  # goes into the namespace, to its first declaration
            at = space.end()
            continue
        head, end = _extent(blank, at)
        text = blank[at:end]
        found.append(Declaration(at, end, frozenset(_names(blank[at:head], text)),
                                 frozenset(_WORD.findall(text)),
                                 bool(_ALWAYS.search(blank[at:head]))))
        at = end


def _extent(blank, at):
    """Returns two offsets for the declaration that begins at `at`: (end of the head, end of the
    declaration)."""
    begin, head = at, None
    while at < len(blank):
        c = blank[at]
        if c == ";":
            return (at if head is None else head), at + 1
        if c in "([{":
            close = match_bracket(blank, at)
            if close < 0:
                return (at if head is None else head), len(blank)
            if c == "{":
                head = at if head is None else head
                before = blank[begin:at]
                if not _needs_semicolon(before):
                    return head, close + 1
            at = close
        at += 1
    return (at if head is None else head), at


def _needs_semicolon(before):
    """Returns True if a brace after this text begins a type or a value. Returns False if it begins
    the body of a function."""
    plain = _TEMPLATE.sub(" ", before)
    plain = re.sub(r"__attribute__\s*\(\(.*?\)\)|\b(alignas|__align__)\s*\([^)]*\)", " ", plain)
    return "(" not in plain.split("=")[0] and bool(_TYPE.search(plain) or "=" in plain
                                                   or not plain.rstrip().endswith(")"))


def _names(head, text):
    called = set(re.findall(r"([A-Za-z_]\w*)\s*(?:<[^<>;{}()]*>\s*)?\(", head))
    called -= _COMMON  # `float` is not called in `float (*rows)[4]`
    if called and "{" in text and not _needs_semicolon(head):
        return called | set(re.findall(r"(\w+)\s*::", head))
    if called and "{" not in text and not re.search(r"\btypedef\b|=", head):
        return called  # a declaration without body. The names of its parameters do not count
    if _TYPE.search(head) and "{" in text and not re.search(r"\benum\b", head):
        tail = text[text.rindex("}") :]
        members = re.findall(r"([A-Za-z_]\w*)\s*\(", _without_bodies(text))
        return {*_WORD.findall(head), *members, *_WORD.findall(tail)} - _COMMON
    return set(_WORD.findall(text)) - _COMMON


def _without_bodies(text):
    """Returns the text of a type without the bodies of its functions. Bodies use names, but do not
    declare names for other code."""
    out, at = [], text.index("{") + 1
    for brace in re.finditer(r"\{", text):
        begin = brace.start()
        before = _TEMPLATE.sub(" ", text[max(text.rfind(c, 0, begin) for c in ";{}") + 1 : begin])
        close = match_bracket(text, begin)
        if at <= begin < close and "(" in before and not _TYPE.search(before):
            # A constructor's list of initial values declares no names.
            out.append(re.sub(r"\)\s*:(?!:)[^;{}]*$", ")", text[at:begin]))
            at = close + 1
    return "".join([*out, text[at:]])


def reached(all_declarations, words):
    """Returns the declarations in `all_declarations` that a text with these words can use."""
    seen, todo = set(), set(words)
    rest = list(all_declarations)
    changed = True
    while changed:
        changed, left = False, []
        for d in rest:
            if d.always or d.names & todo:
                seen.add(d)
                todo |= d.words
                changed = True
            else:
                left.append(d)
        rest = left
    return [d for d in all_declarations if d in seen]

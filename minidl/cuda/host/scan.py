"""Finds comments, brackets, macros and functions in C++ text, without a compiler.

This code does not parse C++, it only matches brackets. That is enough: `__global__` marks a kernel,
and a name before a bracket is a call.

Test: tests/cuda/host/test_source.py
"""

import re
from dataclasses import dataclass, field


@dataclass
class Function:
    """A function of the file. All offsets are offsets in the text."""

    name: str
    head: int  # the offset where the function's declaration begins
    open_paren: int
    body: tuple[int, int]  # (begin, end), without the braces
    is_kernel: bool
    template: list = field(default_factory=list)  # [(type word, name, default)]
    params: str = ""


_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',
    re.S | re.M,
)


def blank_out(text):
    """Returns `text` with spaces instead of comments, strings and # lines. Offsets do not
    change."""
    return _NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def names_of_types(text, blank):
    """Returns {name: the text that the name stands for}, from macros without parameters, from
    typedef and from using."""
    found = re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w \t]+)$", text, re.M)
    types = {m[1]: m[2].strip() for m in found}
    types |= {m[2]: m[1] for m in re.finditer(r"\btypedef\s+([\w\s:]+?)\s+(\w+)\s*;", blank)}
    types.update({m[1]: m[2] for m in re.finditer(r"\busing\s+(\w+)\s*=\s*([\w\s:]+);", blank)})
    return types


def lists_of_parameters(text):
    """Returns {name: body} for macros that stand for several parameters of a function. An example
    of such a body is `int rows, int cols`."""
    text = re.sub(r"[ \t]*\\\n[ \t]*", " ", text)  # joins lines that a backslash continues
    found = re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w \t*]+,[\w \t*,]+)$", text, re.M)
    return {m[1]: m[2] for m in found}


# words that may come before __shared__ in a declaration
_WORDS = re.compile(r"(?:(?:(?:__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)"
                    r"|(?:::\s*)?[A-Za-z_]\w*\b(?:\s*::\s*[A-Za-z_]\w*\b)*(?:\s*<[^;{}()]*>)?"
                    r"|\*)\s*)+$")


def shared_first(text):
    """Returns `text` with the words of all __shared__ declarations in the same order. Other code
    then needs to know only this order. Removes `static`. Line numbers do not change.

        extern volatile float __shared__ s[];   ->   extern __shared__ volatile float s[];"""
    if "__shared__" not in text:
        return text
    blank, out, at = blank_out(text), [], 0
    for mark in re.finditer(r"\b__shared__\b(?:\s+(?:extern|static)\b)*", blank):
        begin = max(blank.rfind(c, at, mark.start()) for c in ";{}") + 1
        words = _WORDS.search(blank, max(begin, at), mark.start())
        begin = words.start() if words else mark.start()
        given = text[begin : mark.end()]
        if re.search(r"^\s*#", given, re.M):  # a line mark of the preprocessor
            continue
        rest = re.sub(r"\b(extern|static|__shared__)\b", "", blank[begin : mark.end()])
        extern = "extern " if re.search(r"\bextern\b", given) else ""
        out += [text[at:begin], f"{extern}__shared__ {rest}"]
        at = mark.end()
    return "".join([*out, text[at:]])


def match_bracket(text, at):
    """Returns the offset of the bracket that closes the bracket at `at`. Returns -1 if there is
    none."""
    close = {"(": ")", "{": "}", "[": "]"}[text[at]]
    depth = 0
    for m in re.compile("[" + re.escape(text[at] + close) + "]").finditer(text, at):
        depth += 1 if m[0] == text[at] else -1
        if depth == 0:
            return m.start()
    return -1


_CALL = re.compile(r"\b(operator\s*\(\s*\)|operator\b[^\w;(){}]*|operator\s[^;(){}]*|[A-Za-z_]\w*)"
                   r"\s*\(")
_AFTER = re.compile(r"\s*(?:const\b|noexcept\b|__attribute__\s*\(\(.*?\)\)|\s)*([{;])?")
_NO_FUNCTION = {"if", "for", "while", "switch", "return", "sizeof", "catch", "alignas", "decltype"}


def functions(blank):
    """Returns two lists: ([Function], [the offset after the '(' of each kernel that is only
    declared]). blank: text from blank_out()."""
    found, declarations, at = [], [], 0
    while call := _CALL.search(blank, at):
        name, paren = re.sub(r"\s", "", call[1]), call.end() - 1
        at = call.end()
        close = match_bracket(blank, paren)
        if close < 0:
            break
        if name in _NO_FUNCTION:
            continue
        after = _AFTER.match(blank, close + 1)
        head = max(blank.rfind(c, 0, call.start()) for c in ";{}") + 1
        head += len(blank[head:]) - len(blank[head:].lstrip())
        declared = blank[head : call.start()]
        is_kernel = "__global__" in declared
        if after[1] == "{":
            brace = after.end() - 1
            end = match_bracket(blank, brace)
            end = len(blank) if end < 0 else end  # the compiler reports the missing brace
            found.append(Function(name, head, paren, (brace + 1, end), is_kernel,
                                  _template(declared), blank[paren + 1 : close]))
            at = end
        elif after[1] == ";" and is_kernel:
            declarations.append(paren + 1)
            at = close
    return found, declarations


def _template(declared):
    found = re.search(r"\btemplate\s*<", declared)
    if not found:
        return []
    depth, end = 1, found.end()
    while depth and end < len(declared):
        depth += {"<": 1, ">": -1}.get(declared[end], 0)
        end += 1
    params = []
    for p in split_arguments(declared[found.end() : end - 1]):
        p, _, default = (s.strip() for s in p.partition("="))
        word, _, name = p.rpartition(" ")
        params.append((word.strip(), name.strip(), default or None))
    return params


def split_arguments(text):
    """Splits a text at the commas outside of brackets. Returns a list. < and > count as brackets,
    but not inside of other brackets, as in a[n > 8]."""
    parts, inside, angle, start = [], 0, 0, 0
    for i, c in enumerate(text):
        inside += (c in "([{") - (c in ")]}")
        angle += ((c == "<") - (c == ">")) * (inside == 0)
        if c == "," and inside == angle == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]

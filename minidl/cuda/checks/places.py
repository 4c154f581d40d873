"""Reads the text of a .cu file around a line: finds the array on the line and the loops around it.

A finding has only the line of an access. The reader also wants to know which loop does not end, or
the name of the array. The compiler tells only the array's type. The functions of this file find the
loop and the name in the text. They do not parse C++, but only match brackets
(minidl/cuda/host/scan.py).
Test: tests/cuda/checks/test_places.py
"""

import math
import re

from minidl.cuda.host.scan import blank_out, match_bracket


def _text(path, file):
    """Returns the text of `file` without comments and strings. file: the name of the file at
    `path`, or of another file in its folder. Returns "" if there is no such file."""
    try:
        return blank_out((path if path.name == file else path.parent / file).read_text())
    except OSError:
        return ""


def enclosing_loops(path, file, line):
    """Finds the loops around the line `line`. Returns a list with the number of the line where each
    loop begins. The innermost loop is first."""
    text = _text(path, file)
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    if not 0 < line <= len(starts):
        return []
    begin = starts[line - 1]
    end = starts[line] if line < len(starts) else len(text)
    found = []
    for m in re.finditer(r"\b(for|while)\s*\(|\bdo\b", text):
        at = m.end()
        if m[1]:
            at = match_bracket(text, m.end() - 1) + 1
        body = re.match(r"\s*\{", text[at:])
        last = match_bracket(text, at + body.end() - 1) if body else text.find(";", at)
        if m.start() < end and begin <= last:
            found.append(text.count("\n", 0, m.start()) + 1)
    return list(reversed(found))


def earlier_uses(path, file, line, name):
    """Returns the numbers of the lines that use the variable `name`, from its declaration to the
    line before `line`. Looks at no more than 40 lines. Returns no more than four numbers."""
    lines = _text(path, file).splitlines()[: line - 1]
    found = []
    for number in range(len(lines), max(0, len(lines) - 40), -1):
        if re.search(rf"\b{name}\b", lines[number - 1]):
            found.append(number)
            if re.match(rf"\s*[\w ,*]+\b{name}\b\s*[,;]", lines[number - 1]):
                return found[::-1][:4]  # this line declares the variable, without a value
    return found[::-1][:4]


_SIZED = re.compile(r"(?<=[;{}])\s*(?!return|else|case|typedef)([\w ]*?\w)\s+\w+\s*"
                    r"((?:\[[^\]\[;]+\]\s*)*)[;=]")


def large_locals(path):
    """Returns the numbers of the lines that declare a local array of 256 elements or more, or a
    struct with such an array. The line of the largest array comes first. Returns no more than three
    numbers."""
    text = _text(path, path.name)
    types, found, bodies = {}, [], []
    for m in re.finditer(r"\bstruct\s+(\w+)[^;{(]*\{", text):
        members = text[m.end() - 1 : match_bracket(text, m.end() - 1)]
        bodies.append((m.end(), m.end() + len(members)))
        types[m[1]] = max((_elements(a[2]) for a in _SIZED.finditer(members)), default=1)
    for m in _SIZED.finditer(text):
        words = m[1].split()
        if any(a <= m.end() <= b for a, b in bodies):
            continue
        outside = text.count("{", 0, m.start()) == text.count("}", 0, m.start())
        if outside or {"__shared__", "static", "extern", "__device__"} & set(words):
            continue
        n = _elements(m[2]) * types.get(words[-1], 1)
        if n >= 256:
            found.append((n, text.count("\n", 0, m.end()) + 1))
    return [line for _, line in sorted(found, reverse=True)[:3]]


def _elements(extents):
    """Returns the number of elements of an array. extents: text such as "[4][1 << 10]". A name in
    this text counts as 256."""
    n = 1
    for extent in re.findall(r"\[([^\]]+)\]", extents):
        plain = re.sub(r"[A-Za-z_]\w*", "256", extent)
        if re.fullmatch(r"[\d\s<>()+*/-]{1,40}", plain) and "**" not in plain:
            try:
                # `plain` has only digits and operators, so eval cannot run other code.
                n *= max(1, int(eval(plain.replace("/", "//"))))
            except (SyntaxError, ArithmeticError, ValueError):
                n *= 256
    return math.floor(n)


def array_on(path, file, line, c_type, known):
    """Finds the array that a line uses with an index. Returns text such as 'tile, a float [64]'. If
    the array's name is not certain, the text has only the type.
    c_type: the array's type. known: names of variables that may be the array."""
    text = _text(path, file)
    lines = text.splitlines()
    if not 0 < line <= len(lines):
        return f"a {c_type}"
    names = dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\s*\[", lines[line - 1]))
    extent = re.escape(re.search(r"\[(\d+)\]", c_type)[1]) if "[" in c_type else ""
    declared = r"\b{}\s*(\[[^\]]*\]\s*)*\[\s*(" + extent + r"\s*|[A-Z]\w*[^\]]*)\]"
    fits = [n for n in names if n in known or re.search(declared.format(n), text)]
    return f"{' or '.join(fits)}, a {c_type}" if fits else f"a {c_type}"

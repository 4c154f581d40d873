"""Plans the flat form: a kernel without barriers becomes the body of a loop over its threads.

This file decides how the loop can be fast. launchers.py writes the loop.

    int i = blockIdx.x * blockDim.x + threadIdx.x;      for (int i = begin; i < min(end, n); ++i)
    if (i < n) c[i] = a[i] + b[i];                  ->      c[i] = a[i] + b[i];

1. The index. CUDA computes the index in unsigned arithmetic, which may wrap. So a compiler must
   assume that a[i] and a[i + 1] may be far apart. The compiled code then loads the elements one by
   one. To prevent this, the loop's own counter replaces the expression of the index.
2. The guard around the kernel, `if (i < n)`, becomes the end of the loop.
3. If the whole kernel is a grid-stride loop, the body of this loop becomes the body of the new
   loop. Then the new loop goes through memory in order, for any grid.
4. The loop gets `#pragma omp simd`, unless the kernel has loops of its own. (A kernel with a thread
   for each row has a loop of its own. Then the compiler vectorises that inner loop.)

If a kernel has none of these patterns, its text is not changed. Such a kernel is slower, but
correct.
Test: tests/cuda/host/test_flat.py
"""

import re
from dataclasses import dataclass, field

from minidl.cuda.host.scan import match_bracket

# CUDA's names for a thread's place along x
_T, _B, _D, _G = (rf"{word}\s*\.\s*x" for word in "threadIdx blockIdx blockDim gridDim".split())
_INTEGER = (r"(?:unsigned\s+int|unsigned\s+long\s+long|unsigned\s+long|long\s+long|int64_t|uint32_t"
            r"|uint64_t|size_t|int|unsigned|long)")
_CAST = rf"(?:\(\s*{_INTEGER}\s*\)\s*)?"


def _either(a, op, b):
    return rf"(?:{a}\s*\{op}\s*{b}|{b}\s*\{op}\s*{a})"


def _product(a, b):
    """Returns a pattern for a * b in both orders, with or without casts and brackets."""
    product = _either(_CAST + a, "*", _CAST + b)
    return rf"(?:{_CAST}{product}|{_CAST}\(\s*{product}\s*\))"


_PRODUCT = _product(_B, _D)
INDEX = re.compile(
    rf"(?<![\w.])(?:{_PRODUCT}\s*\+\s*{_CAST}{_T}|{_CAST}{_T}\s*\+\s*{_PRODUCT})(?!\s*\.)\b")
STRIDE = _product(_D, _G)
_DECLARATION = re.compile(rf"(?:const\s+)?{_INTEGER}\s+(\w+)\s*=\s*([^;]+);")


@dataclass
class Plan:
    """Tells launchers.py how to write the loop over the threads of one kernel."""

    edits: list = field(default_factory=list)  # (begin, end, text): text replaces source[begin:end]
    linear: bool = False  # one loop over x for all blocks together, with the counter `minidl_x`
    index_type: str = "int"
    bound: str | None = None  # the end of the loop: C text with the kernel's parameters, or None
    whole: bool = False  # True for a grid-stride loop, which covers 0..bound for any grid
    simd: bool = False
    has_copy: bool = False  # the C++ also has a copy of the kernel without edits, for selfcheck.py


def plan(source, name):
    """Returns the Plan for the kernel `name` of `source`. For a template, `name` is an instance."""
    kernel, reached = source.kernel(name), source.reach(name)[1:]
    helpers = "\n".join(source.blank[d.begin : d.end] for d in reached)
    begin, end = kernel.body
    body = source.blank[begin:end]
    if re.search(r"\b(threadIdx|blockIdx|blockDim|gridDim)\b", helpers):
        # Helpers read threadIdx from a global variable. In a vectorised loop, all threads of a
        # vector would read the same value.
        return Plan()
    result = Plan(simd=_vectorises(body, helpers))

    params = source.value_parameters(kernel)
    if stride_loop := _grid_stride(body, params):
        loop_type, variable, bound, edits = stride_loop
        rest = _without(body, edits)
        if not re.search(rf"\b({_T}|{_B}|{_D}|{_G})", rest):
            result.edits = [(begin + a, begin + b, text) for a, b, text in edits]
            result.linear = result.whole = True
            result.index_type, result.bound = loop_type, bound
            result.simd = _vectorises(rest, helpers)  # `rest` has the kernel's other loops
            return result

    found = [m for m in INDEX.finditer(body) if _stands_alone(body, m)]
    if not found:
        return result
    edits = [(m.start(), m.end(), "(minidl_x)") for m in found]
    rest = _without(body, edits)
    if re.search(rf"\b({_T}|{_B}|{_D}|{_G})", rest):
        return result  # the kernel also uses a thread's place in the block, or the block's size
    declared = re.search(rf"({_INTEGER})\s+(\w+)\s*=\s*\(?\s*$", body[: found[0].start()])
    result.linear = True
    result.index_type = " ".join(declared[1].split()) if declared else "unsigned"
    guard = declared and not _assigned(body, declared[2]) and _guard(body, declared[2], params)
    if guard:
        *edit, result.bound = guard
        edits.append(tuple(edit))
    result.edits = [(begin + a, begin + b, text) for a, b, text in edits]
    return result


def _vectorises(body, helpers):
    """Returns True if the compiler may vectorise the loop over threads. body: the text of the
    kernel. helpers: the text of the other code that the kernel can run."""
    text = f"{body}\n{helpers}"
    return not (_has_long_loop(text) or "atomic" in text
                or re.search(r"\b(volatile|printf|assert)\b", text))


def _without(body, edits):
    for a, b, text in sorted(edits, reverse=True):
        body = body[:a] + text + body[b:]
    return body


def _has_long_loop(text):
    """Returns True if the text has a loop that compilers do not unroll. Compilers unroll a for loop
    if its limit is a number up to 16, or a constant in capital letters."""
    if re.search(r"\b(while|do)\b", text):
        return True
    for m in re.finditer(r"\bfor\s*\(", text):
        close = match_bracket(text, m.end() - 1)
        condition = (text[m.end() : close].split(";") + ["", ""])[1]
        limit = re.search(r"[<>]=?\s*(\w+)\s*$", condition)
        if not limit or not (limit[1].isdigit() and int(limit[1]) <= 16 or limit[1].isupper()):
            return True
    return False


def _stands_alone(body, m):
    """Returns True if the match m is not part of a longer product. For example, `2 * blockIdx.x *
    ...` is another index."""
    before, after = body[: m.start()].rstrip()[-1:], body[m.end() :].lstrip()[:1]
    return before not in [*"*/%-~!&"] and after not in [*"*/%.["]


def _assigned(body, variable, declarations=1):
    """Returns True if the body changes the variable or takes its address. declarations: how many
    assignments do not count, because they are the variable's declaration."""
    assignment = rf"\b{variable}\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)"
    step = rf"(?:\+\+|--|&)\s*{variable}\b|\b{variable}\s*(?:\+\+|--)"
    changes = re.findall(f"{assignment}|{step}", body)
    return len(changes) > declarations


def _comparison(text, variable, params, operator):
    """Returns the bound of a text such as `variable < bound`, if the bound is a product of
    parameters and numbers. Else returns None. operator: a pattern for the operator, such as "<"."""
    m = re.fullmatch(rf"\s*\(?\s*{variable}\s*{operator}\s*\(?\s*([\w\s*]+?)\s*\)?\s*\)?\s*", text)
    if not m:
        return None
    words = [w.strip() for w in m[1].split("*")]
    return m[1] if all(re.fullmatch(r"\d+", w) or w in params for w in words) else None


_PLAIN_DECLARATION = re.compile(
    r"\s*(?:const\s+)?(?:\w+\s+)+\w+\s*=[^=;()\[\]]*(?:\([^()\[\]]*\)[^=;()\[\]]*)*$")


def _is_plain(statement):
    """Returns a true value if the statement is a declaration that calls no function."""
    calls = re.search(r"\b\w+\s*\(", statement.replace("(minidl_x)", ""))
    return _PLAIN_DECLARATION.match(statement) and not calls


def _guard(body, variable, params):
    """Finds the guard around the kernel. Returns (begin, end, replacement, bound). The comparison
    of the index with `bound` is the text from `begin` to `end`. The caller puts `replacement`
    there, "true" or "false". Returns None if there is no guard.

    A guard is `if (i >= n) return;`, or `if (i < n) statement` as the last statement of the kernel.
    Before the guard there may be only declarations."""
    m = re.search(r"\bif\s*\(", body)
    before = [s for s in body[: m.start()].split(";") if s.strip()] if m else []
    if not m or not all(map(_is_plain, before)):
        return None
    close = match_bracket(body, m.end() - 1)
    rest = body[close + 1 :]
    returns = re.match(r"\s*(?:return\s*;|\{\s*return\s*;\s*\})", rest)
    split, operator, neutral = (r"\|\|", ">=", "false") if returns else ("&&", "<", "true")
    if not returns and rest[_end_of_statement(rest) + 1 :].strip():
        return None
    at = m.end()
    for part in re.split(f"({split})", body[m.end() : close]):
        bound = _comparison(part, variable, params, operator)
        if bound and not _is_assigned(body, bound):
            return at, at + len(part), neutral, bound
        at += len(part)
    return None


def _is_assigned(body, bound):
    """Returns True if the body changes a factor of the bound."""
    return any(_assigned(body, word.strip(), 0) for word in bound.split("*"))


def _end_of_statement(text):
    """Returns the offset of the brace or semicolon that ends the first statement of `text`. For a
    loop without braces, returns the offset of a semicolon in the loop's head. The caller sees that
    more text follows this semicolon, and returns None."""
    if block := re.match(r"\s*\{", text):
        return match_bracket(text, block.end() - 1)
    return text.find(";")


def _grid_stride(body, params):
    """Finds a grid-stride loop. The kernel must have only declarations before the loop, and no code
    after the loop. Returns (type of the loop's variable, name of this variable, bound, edits).
    Returns None for all other kernels."""
    header = re.search(r"\bfor\s*\(", body)
    if not header:
        return None
    close, before = match_bracket(body, header.end() - 1), body[: header.start()]
    parts = body[header.end() : close].split(";")
    start = re.fullmatch(rf"\s*({_INTEGER})\s+(\w+)\s*=\s*(.*?)\s*", parts[0], re.S)
    if len(parts) != 3 or not start or _DECLARATION.sub("", before).strip():
        return None  # another form of loop, or other statements before the loop
    declarations = list(_DECLARATION.finditer(before))
    declared = {m[1]: m[2].strip() for m in declarations}
    variable = start[2]
    first = declared.get(start[3], start[3])
    step = re.fullmatch(rf"\s*{variable}\s*\+=\s*(.+?)\s*", parts[2], re.S)
    bound = _comparison(parts[1], variable, params, "<")
    if not step or not bound or _is_assigned(body, bound) or not INDEX.fullmatch(first):
        return None
    if not re.fullmatch(STRIDE, declared.get(step[1], step[1])):
        return None
    rest = body[close + 1 :]
    ends = _end_of_statement(rest)
    if rest[ends + 1 :].strip():
        return None
    inner = rest[: ends + 1]
    if re.search(r"\b(break|continue|return|goto)\b", inner) or _assigned(inner, variable, 0):
        return None
    absorbed = {step[1], start[3]} & {*declared}  # variables that only the loop's header may use
    if any(re.search(rf"\b{name}\b", inner) for name in absorbed - {variable}):
        return None
    edits = [(header.start(), close + 1, f"const {start[1]} {variable} = minidl_x;")]
    edits += [(m.start(), m.end(), "") for m in declarations if m[1] in absorbed]
    return " ".join(start[1].split()), variable, bound, edits

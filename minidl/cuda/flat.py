"""The flat form: a kernel without barriers is the body of a loop over its threads. This file makes
that loop a fast one.

    int i = blockIdx.x * blockDim.x + threadIdx.x;      for (int i = begin; i < min(end, n); ++i)
    if (i < n) c[i] = a[i] + b[i];                  ->      c[i] = a[i] + b[i];

1. The index. CUDA computes it in unsigned arithmetic, which may wrap, so a compiler must expect
a[i] and a[i + 1] to be far
   apart and gathers them one by one. The expression is replaced by the loop's own counter.
2. The guard around the kernel, `if (i < n)`, becomes the end of the loop.
3. A grid-stride loop that is the whole kernel becomes the body of the loop: contiguous, whatever
the grid.
4. `#pragma omp simd` on the loop, unless the kernel has loops of its own (a thread per row: those
are vectorised inside).

A form that is not recognised stays as it is: slower, never wrong.   Test: tests/cuda/test_flat.py
"""

import re
from dataclasses import dataclass, field

from minidl.cuda.source import match_bracket

# threads are independent here; each CUDA word for "my place along x"
_T, _B, _D, _G = (
    r"threadIdx\s*\.\s*x",
    r"blockIdx\s*\.\s*x",
    r"blockDim\s*\.\s*x",
    r"gridDim\s*\.\s*x",
)
_INTEGER = (
    r"(?:unsigned\s+int|unsigned\s+long\s+long|unsigned\s+long|long\s+long"
    r"|int64_t|uint32_t|uint64_t|size_t|int|unsigned|long)"
)
_CAST = rf"(?:\(\s*{_INTEGER}\s*\)\s*)?"


def _either(a, op, b):
    return rf"(?:{a}\s*\{op}\s*{b}|{b}\s*\{op}\s*{a})"


def _product(a, b):
    """a * b in either order, with or without casts and brackets."""
    product = _either(_CAST + a, "*", _CAST + b)
    return rf"(?:{_CAST}{product}|{_CAST}\(\s*{product}\s*\))"


_PRODUCT = _product(_B, _D)
INDEX = re.compile(
    rf"(?<![\w.])(?:{_PRODUCT}\s*\+\s*{_CAST}{_T}|{_CAST}{_T}\s*\+\s*{_PRODUCT})(?!\s*\.)\b"
)
STRIDE = _product(_D, _G)


@dataclass
class Plan:
    """How the loop over the threads of one kernel is written. edits: (begin, end, text) on the
    source."""

    edits: list = field(default_factory=list)
    linear: bool = (
        False  # x runs over all blocks in one loop, the kernel gets its index as `minidl_x`
    )
    index_type: str = "int"
    bound: str | None = None  # C expression of parameters where the loop may end
    whole: bool = False  # a grid-stride loop: covers 0..bound for any grid
    simd: bool = False


def plan(source, kernel):
    """The Plan for `kernel`, a Function of `source`."""
    reached = source.reach(kernel)
    helpers = "\n".join(source.blank[f.body[0] : f.body[1]] for f in reached if f is not kernel)
    begin, end = kernel.body
    body = source.blank[begin:end]
    simd = (
        not _has_long_loop(body) and not _has_long_loop(helpers) and "atomic" not in body + helpers
    )
    simd = simd and not re.search(r"\b(volatile|printf|assert)\b", body + helpers)
    result = Plan(simd=simd)
    if re.search(r"\b(threadIdx|blockIdx|blockDim|gridDim)\b", helpers):
        result.simd = (
            False  # helpers read the global variables, which a vector of threads cannot share
        )
        return result

    params = source.value_parameters(kernel)
    if stride_loop := _grid_stride(body, params):
        loop_type, variable, bound, edits = stride_loop
        rest = _without(body, edits)
        if not re.search(rf"\b({_T}|{_B}|{_D}|{_G})", rest):
            result.edits = [(begin + a, begin + b, text) for a, b, text in edits]
            result.linear = result.whole = True
            result.index_type, result.bound = loop_type, bound
            # the loop is gone: what loops remain?
            inner = rest
            result.simd = (
                not _has_long_loop(inner)
                and not _has_long_loop(helpers)
                and "atomic" not in inner + helpers
            )
            return result

    found = [m for m in INDEX.finditer(body) if _stands_alone(body, m)]
    if not found:
        return result
    edits = [(m.start(), m.end(), "(minidl_x)") for m in found]
    rest = _without(body, edits)
    if re.search(rf"\b({_T}|{_B}|{_D}|{_G})", rest):
        return result  # the block along x matters in itself
    declared = re.search(rf"({_INTEGER})\s+(\w+)\s*=\s*\(?\s*$", body[: found[0].start()])
    result.linear = True
    result.index_type = " ".join(declared[1].split()) if declared else "unsigned"
    if declared and not _assigned(body, declared[2]):
        if guard := _guard(body, declared[2], params):
            a, b, text, result.bound = guard
            edits.append((a, b, text))
    result.edits = [(begin + a, begin + b, text) for a, b, text in edits]
    return result


def launcher(name, plan, number, parameters, arguments):
    """C++ of the exported launcher of a flat kernel. name: 'scale<float>' for an instance;
    arguments: C++ that reads each."""
    simd = '_Pragma("omp simd")' if plan.simd else ""
    hidden = "threadIdx, blockIdx, block, grid"
    if not plan.linear:
        return f"""
__attribute__((flatten))
static void minidl_units_{number}(const MinidlLaunch* L, long long begin, long long end) {{
  const dim3 grid(L->grid[0], L->grid[1], L->grid[2]), block(L->block[0], L->block[1], L->block[2]);
  {_unpack(arguments)}
  ::gridDim = grid; ::blockDim = block;
  for (long long u = begin; u < end; ++u) {{
    const uint3 blockIdx = {{unsigned(u % grid.x), unsigned(u / grid.x % grid.y),
                            unsigned(u / grid.x / grid.y)}};
    ::blockIdx = blockIdx;
    for (unsigned z = 0; z < block.z; ++z)
      for (unsigned y = 0; y < block.y; ++y) {{
        {simd}
        for (int x = 0; x < (int)block.x; ++x) {{
          const uint3 threadIdx = {{(unsigned)x, y, z}};
          {"" if plan.simd else "::threadIdx = threadIdx;"}
          {name}({hidden}{_names(arguments)});
        }}
      }}
  }}
}}
MINIDL_EXPORT int minidl_launch_{number}(const MinidlLaunch* L) {{
  return minidl_run_flat(L, minidl_units_{number}, (long long)L->grid[0] * L->grid[1] * L->grid[2]);
}}
"""
    # a tile: enough elements to make a vector loop worthwhile; one row, which may be all the work
    # of a CPU thread
    tile = 2048 if plan.simd else 1
    t = plan.index_type
    ours = {
        p.name: f"minidl_a{i}" for i, p in enumerate(parameters)
    }  # the bound speaks of the kernel's parameters
    bound = re.sub(r"[A-Za-z_]\w*", lambda m: ours[m[0]], plan.bound) if plan.bound else ""
    bound = f"(long long)({bound})"
    end = bound if plan.whole else "threads"
    clip = f"if ({bound} < n) n = {bound};" if plan.bound and not plan.whole else ""
    return f"""
static long long minidl_extent_{number}(const MinidlLaunch* L) {{
  {_unpack(arguments)}
  const long long threads = (long long)L->grid[0] * L->block[0];
  long long n = {end};
  {clip}
  return n < 0 ? 0 : n;
}}
__attribute__((flatten))
static void minidl_units_{number}(const MinidlLaunch* L, long long begin, long long end) {{
  const dim3 grid(L->grid[0], L->grid[1], L->grid[2]), block(L->block[0], L->block[1], L->block[2]);
  {_unpack(arguments)}
  const long long n = minidl_extent_{number}(L), tiles = (n + {tile - 1}) / {tile};
  while (begin < end) {{
    const long long row = begin / tiles, first = begin - row * tiles;
    const long long last = first + (end - begin) < tiles ? first + (end - begin) : tiles;
    begin += last - first;
    const unsigned y = row % block.y, z = row / block.y % block.z,
                   by = row / block.y / block.z % grid.y, bz = row / block.y / block.z / grid.y;
    const uint3 threadIdx = {{0, y, z}}, blockIdx = {{0, by, bz}};
    const {t} stop = ({t})(last * {tile} < n ? last * {tile} : n);
    {simd}
    for ({t} minidl_x = ({t})(first * {tile}); minidl_x < stop; ++minidl_x)
      {name}({hidden}, minidl_x{_names(arguments)});
  }}
}}
MINIDL_EXPORT int minidl_launch_{number}(const MinidlLaunch* L) {{
  const long long n = minidl_extent_{number}(L);
  if ((long long)({t})n != n || ({t})n < 0)
    return minidl_refuse("its index of type {t} cannot count the threads of this launch; "
                         "use a wider type");
  const long long rows = (long long)L->grid[1] * L->grid[2] * L->block[1] * L->block[2];
  return minidl_run_flat(L, minidl_units_{number}, (n + {tile - 1}) / {tile} * rows);
}}
"""


def _unpack(arguments):
    return " ".join(f"const auto minidl_a{i} = {a};" for i, a in enumerate(arguments))


def _names(arguments):
    return "".join(f", minidl_a{i}" for i in range(len(arguments)))


def _without(body, edits):
    for a, b, text in sorted(edits, reverse=True):
        body = body[:a] + text + body[b:]
    return body


def _has_long_loop(text):
    """A loop that a compiler will not unroll: any while, and any for whose end is not a small
    number or a CONSTANT."""
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
    """Not part of a longer product: `2 * blockIdx.x * blockDim.x + threadIdx.x * 4` is another
    index."""
    before, after = body[: m.start()].rstrip()[-1:], body[m.end() :].lstrip()[:1]
    return before not in ("*", "/", "%", "-", "~", "!", "&") and after not in (
        "*",
        "/",
        "%",
        ".",
        "[",
    )


def _assigned(body, variable, declarations=1):
    """Is the variable changed, or its address taken, besides its declaration?"""
    changes = re.findall(
        rf"\b{variable}\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)"
        rf"|(?:\+\+|--|&)\s*{variable}\b|\b{variable}\s*(?:\+\+|--)",
        body,
    )
    return len(changes) > declarations


def _comparison(text, variable, params, operator):
    """The bound of `variable < bound`, a parameter or a product of parameters and numbers; None if
    it is something else."""
    m = re.fullmatch(rf"\s*\(?\s*{variable}\s*{operator}\s*\(?\s*([\w\s*]+?)\s*\)?\s*\)?\s*", text)
    if not m:
        return None
    words = [w.strip() for w in m[1].split("*")]
    return m[1] if all(re.fullmatch(r"\d+", w) or w in params for w in words) else None


_PLAIN_DECLARATION = re.compile(
    r"\s*(?:const\s+)?(?:\w+\s+)+\w+\s*=[^=;()\[\]]*(?:\([^()\[\]]*\)[^=;()\[\]]*)*$"
)


def _guard(body, variable, params):
    """(begin, end, replacement, bound) of the guard around the kernel; None if there is none we are
    sure of.

    Either `if (i >= n) return;` after declarations alone, or `if (i < n) statement` as the last
    statement after such."""
    for m in re.finditer(r"\bif\s*\(", body):
        close = match_bracket(body, m.end() - 1)
        condition = body[m.end() : close]
        before = [s for s in body[: m.start()].split(";") if s.strip()]
        if not all(
            _PLAIN_DECLARATION.match(s)
            and not re.search(r"\b\w+\s*\(", s.replace("(minidl_x)", ""))
            for s in before
        ):
            return None
        rest = body[close + 1 :]
        returns = re.match(r"\s*(?:return\s*;|\{\s*return\s*;\s*\})", rest)
        split, operator, neutral = (r"\|\|", ">=", "false") if returns else ("&&", "<", "true")
        if not returns:
            statement = re.match(r"\s*\{", rest)
            ends = match_bracket(rest, statement.end() - 1) if statement else rest.find(";")
            if (
                rest[ends + 1 :].strip()
                or not statement
                and re.match(r"\s*(if|for|while|do|switch)\b", rest)
            ):
                return None
        at = m.end()
        for part in re.split(f"({split})", condition):
            if re.fullmatch(split, part) is None and (
                bound := _comparison(part, variable, params, operator)
            ):
                if all(not _assigned(body, w.strip(), 0) for w in bound.split("*")):
                    return at, at + len(part), neutral, bound
            at += len(part)
        return None
    return None


def _grid_stride(body, params):
    """(index type, variable, bound, edits) if the kernel is one grid-stride loop and nothing else
    that matters."""
    stride_name = None
    header = re.search(r"\bfor\s*\(", body)
    if not header:
        return None
    close = match_bracket(body, header.end() - 1)
    parts = body[header.end() : close].split(";")
    if len(parts) != 3:
        return None
    start = re.fullmatch(rf"\s*({_INTEGER})\s+(\w+)\s*=\s*(.*?)\s*", parts[0], re.S)
    if not start:
        return None
    before = body[: header.start()]
    declared = {
        m[2]: m[3].strip()
        for m in re.finditer(rf"(?:const\s+)?({_INTEGER})\s+(\w+)\s*=\s*([^;]+);", before)
    }
    if re.sub(rf"(?:const\s+)?{_INTEGER}\s+\w+\s*=\s*[^;]+;", "", before).strip():
        return None  # something else happens before the loop
    variable = start[2]
    first = declared.get(start[3], start[3])
    step = re.fullmatch(rf"\s*{variable}\s*\+=\s*(.+?)\s*", parts[2], re.S)
    bound = _comparison(parts[1], variable, params, "<")
    if not step or not bound or not INDEX.fullmatch(first):
        return None
    stride_name = step[1] if step[1] in declared else None
    if not re.fullmatch(STRIDE, declared.get(step[1], step[1])):
        return None
    rest = body[close + 1 :]
    block = re.match(r"\s*\{", rest)
    ends = match_bracket(rest, block.end() - 1) if block else rest.find(";")
    inner = rest[: ends + 1]
    if (
        rest[ends + 1 :].strip()
        or re.search(r"\b(break|continue|return|goto)\b", inner)
        or _assigned(inner, variable, 0)
    ):
        return None
    names = [n for n in declared if n != variable]
    if any(re.search(rf"\b{n}\b", inner) for n in names if n in (stride_name, start[3])):
        return None
    if not block and re.match(r"\s*(if|for|while|do|switch)\b", rest):
        return None
    if any(_assigned(body, w.strip(), 0) for w in bound.split("*")):
        return None
    edits = [(header.start(), close + 1, f"const {start[1]} {variable} = minidl_x;")]
    for m in re.finditer(rf"(?:const\s+)?{_INTEGER}\s+(\w+)\s*=\s*[^;]+;", before):
        if m[1] in (stride_name, start[3]):
            edits.append((m.start(), m.end(), ""))
    return " ".join(start[1].split()), variable, bound, edits

"""Reads a .cu file: its includes, its kernels, their parameters, and which form each one needs.

    template <typename T> __global__ void __launch_bounds__(256) scale(T* y, const T* x, T a, int n)
    {...}
     Kernel   template params                             name   Parameter Parameter ...    body

Nobody compiles here. The text is scanned with brackets matched, which is enough because CUDA keeps
what we need in the open: `__global__` marks a kernel, and a barrier or a warp call is an ordinary
identifier. The compiler sees the same text later and has the last word: a signature misread here is
a type error there, never a wrong launch.

Form:  flat   no barrier, warp call or __shared__ in it or in what it calls: a loop will do
       fibre  anything else: threads must be able to wait for each other
                   (kernels/host/fibre.cpp)
Test: tests/cuda/test_source.py   Tutorial: tutorials/02_add3.py
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from minidl.cuda.parameters import parse_parameter


class KernelError(Exception):
    """A kernel that cannot be found, compiled or launched; the message says what to do."""


# Words that make a thread wait for others, or that only mean something where it can.
WAITS = re.compile(
    r"\b(__shared__|__syncthreads\w*|__syncwarp|__shfl\w*|__ballot\w*|__any_sync|__all_sync"
    r"|__activemask|__match_\w+|__reduce_\w+_sync"
    r"|cooperative_groups|this_thread_block|tiled_partition|coalesced_threads)\b"
)
# What the CPU runner does not have, by the words that give it away.
UNSUPPORTED = [
    (r"\basm\b|\b__asm__\b", "inline PTX (asm)"),
    (r"\bwmma\b|\bmma_sync\b|\bnvcuda\b", "tensor cores (wmma)"),
    (
        r"\b__pipeline_\w+|\bmemcpy_async\b|\bcuda::pipeline\b|\bcp_async\w*",
        "asynchronous copies (cp.async)",
    ),
    (r"<<<", "dynamic parallelism (<<<...>>>)"),
    (r"\bthis_grid\b|\bgrid_group\b|\bthis_cluster\b", "grid-wide synchronisation (grid.sync)"),
    (r"\btex[123]D\w*|\bsurf[123]D\w*|\bcudaTextureObject_t\b", "textures and surfaces"),
    (r"\bstd::|\bthrust::|\bcub::|\bcuda::std::", "the C++ standard library, Thrust and CUB"),
    (r"\b__nv_bfloat16\w*|\b__nv_fp8\w*", "bfloat16 and fp8 types"),
]
# Headers whose contents the host side has, at least the part kernels use; anything else is named in
# an error.
KNOWN_HEADERS = re.compile(
    r"(cuda\w*|cooperative_groups(/reduce)?|device_\w+|math_constants|sm_\w+|vector_\w+)\.h(pp)?$"
    r"|(math|stdint|stddef|stdio|float|limits|assert)\.h$"
    r"|c(math|stdint|stddef|stdio|float|limits|assert)$|cooperative_groups$"
)


@dataclass
class Function:
    """A function of the file; offsets are into Source.text."""

    name: str
    head: int  # where its declaration begins
    name_at: int
    open_paren: int
    body: tuple[int, int]  # without the braces
    is_kernel: bool
    template: list = field(default_factory=list)  # [(type word, name, default)]
    params: str = ""

    def __repr__(self):
        return f"{self.name}({self.params})"


class Source:
    """A file's text with includes put in place, its functions found. `text` may also be the output
    of a preprocessor."""

    def __init__(self, path, text, defines=None):
        self.path, self.text, self.defines = Path(path), text, dict(defines or {})
        self.blank = _blank(text)
        self.functions, self.declarations = _functions(self.blank, text)
        self.by_name = {}
        for f in self.functions:
            self.by_name.setdefault(f.name, []).append(f)
        self.types = {**_object_macros(text), **_typedefs(self.blank), **self.defines}

    @property
    def kernels(self):
        return [f for f in self.functions if f.is_kernel]

    def kernel(self, name):
        """The kernel called `name` (template arguments are ignored here)."""
        base = name.split("<")[0].strip()
        for f in self.kernels:
            if f.name == base:
                return f
        listed = ", ".join(dict.fromkeys(f.name for f in self.kernels)) or "none"
        raise KernelError(f"{self.path}: no kernel {base!r} in this file; it has: {listed}")

    def parameters(self, name):
        """The parameters of the kernel `name`, which may be an instance such as 'scale<float,
        4>'."""
        f = self.kernel(name)
        types = {**self.types, **self.template_arguments(name)}
        return [
            parse_parameter(p, types) for p in _split(f.params) if p.strip() not in ("", "void")
        ]

    def value_parameters(self, function):
        """Names of the parameters that are no pointers."""
        found = [
            re.search(r"(\w+)\s*(?:=.*)?$", p)
            for p in _split(function.params)
            if "*" not in p and "[" not in p
        ]
        return [m[1] for m in found if m]

    def template_arguments(self, name):
        """{template parameter: argument} of an instance 'scale<float, 4>'; {} for a plain
        kernel."""
        f = self.kernel(name)
        given = _split(name[name.index("<") + 1 : name.rindex(">")]) if "<" in name else []
        if not f.template:
            if given:
                raise KernelError(
                    f"{self.path}: kernel {f.name!r} is not a template; ask for {f.name!r}"
                )
            return {}
        arguments = {}
        for i, (_, parameter, default) in enumerate(f.template):
            value = given[i].strip() if i < len(given) else default
            if value is None:
                example = ", ".join(
                    "float" if word in ("typename", "class") else "4" for word, _, _ in f.template
                )
                raise KernelError(
                    f"{self.path}: kernel {f.name!r} is a template and needs its {parameter!r}; "
                    f"ask for an instance, such as kernel(path, '{f.name}<{example}>')"
                )
            arguments[parameter] = value
        if len(given) > len(f.template):
            raise KernelError(
                f"{self.path}: {name!r} has more arguments than the template {f.name!r} takes"
            )
        return arguments

    def reach(self, function):
        """`function` and every function of the file it can call, directly or not, by the names it
        mentions."""
        seen, todo = [], [function]
        while todo:
            f = todo.pop()
            if any(f is s for s in seen):
                continue
            seen.append(f)
            words = set(re.findall(r"[A-Za-z_]\w*", self.blank[f.head : f.body[1]]))
            todo += [g for word in words for g in self.by_name.get(word, ())]
        return seen

    def reached_text(self, name):
        return "\n".join(self.blank[f.head : f.body[1]] for f in self.reach(self.kernel(name)))

    def form(self, name):
        """'flat' or 'fibre', see above. A loop around a compare-and-swap may be a lock: it waits
        too."""
        text = self.reached_text(name)
        spins = re.search(r"\b(while|do)\b", text) and re.search(
            r"\batomic(CAS|Exch)\b|\bvolatile\b", text
        )
        return "fibre" if WAITS.search(text) or spins else "flat"

    def line_of(self, offset):
        """Line in the file, through the `# 12 "file"` marks a preprocessor leaves."""
        before = self.text[:offset].split("\n")
        for i in range(len(before) - 1, -1, -1):
            if mark := re.match(r'#\s*(?:line\s+)?(\d+)\s+"', before[i]):
                return int(mark[1]) + len(before) - 1 - i - 1
        return len(before)

    def check_supported(self, name):
        """KernelError if the kernel uses something the CPU runner does not have."""
        for f in self.reach(self.kernel(name)):
            for pattern, what in UNSUPPORTED:
                if found := re.search(pattern, self.blank[f.head : f.body[1]]):
                    line = self.line_of(f.head + found.start())
                    raise KernelError(
                        f"{self.path}:{line}: {f.name} uses {what}, which the CPU runner "
                        "does not support; run it on a GPU (CuPy arrays), or see the supported "
                        "subset in kernels/README.md"
                    )


# ---- the text ----


_INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def inline_includes(path, folders, keep_headers=False):
    """(text, [files read]): the file with `#include "x"` replaced by x between #line marks.

    Headers in <> that the host side has are dropped, or kept; unknown ones become an #error with a
    sentence."""
    files, once = [], set()

    def read(file, above):
        file = Path(file)
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise KernelError(f"cannot read {file}: {error}") from None
        if file not in files:
            files.append(file)
        out = [f'#line 1 "{file}"']
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split() if "#" in line else []
            if words[:2] == ["#pragma", "once"]:
                once.add(file)
                out.append("")
            elif include := words and _INCLUDE.match(line):
                header = include[2]
                found = next(
                    (d / header for d in (file.parent, *folders) if (d / header).is_file()), None
                )
                if found and found.resolve() in above:
                    raise KernelError(f"{file}:{number}: {header} includes itself")
                if found and found not in once:
                    out += [read(found, {*above, found.resolve()}), f'#line {number + 1} "{file}"']
                elif found or KNOWN_HEADERS.search(header):
                    out.append(line if keep_headers else "")
                elif include[1] == '"':
                    out.append(
                        f"#error minidl: {header} is not found beside {file.name} or in kernels/"
                    )
                else:
                    out.append(f"#error minidl: <{header}> is not supported in a kernel file: "
                               "neither NVRTC nor the CPU "
                               "runner has the C++ standard library")  # fmt: skip
            else:
                out.append(line)
        return "\n".join(out)

    text = read(path, {Path(path).resolve()})
    return text, files


def with_defines(path, defines, folders):
    """The file's text for NVRTC, with `defines` as lines of the text and not on the command line.

    NVIDIA's headers have template parameters called T; -DT=float would turn those into `template
    <typename float>`. So the headers come first, then the macros, then the file, which counts its
    lines from 1."""
    text = Path(path).read_text()
    if not defines:
        return text
    whole, _ = inline_includes(path, folders, keep_headers=True)
    headers = dict.fromkeys(
        re.findall(
            r"^\s*#\s*include\s*<((?:cuda_fp16|cuda_bf16|cooperative_groups|mma)[\w/.]*)>",
            whole,
            re.M,
        )
    )
    head = [f"#include <{h}>" for h in headers] + [
        f"#define {k} {v}" for k, v in sorted(defines.items())
    ]
    return "\n".join([*head, f'#line 1 "{Path(path).name}"', text])


_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',
    re.S | re.M,
)


def _blank(text):
    """`text` with comments, strings and # lines turned to spaces; every offset stays."""
    return _NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _object_macros(text):
    return {
        m[1]: m[2].strip()
        for m in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w \t]+)$", text, re.M)
    }


def _typedefs(blank):
    types = {m[2]: m[1] for m in re.finditer(r"\btypedef\s+([\w\s:]+?)\s+(\w+)\s*;", blank)}
    types.update({m[1]: m[2] for m in re.finditer(r"\busing\s+(\w+)\s*=\s*([\w\s:]+);", blank)})
    return types


def match_bracket(text, at):
    """Offset of the bracket that closes the one at `at`; -1 if none does."""
    close = {"(": ")", "{": "}", "[": "]"}[text[at]]
    depth = 0
    for m in re.compile("[" + re.escape(text[at] + close) + "]").finditer(text, at):
        depth += 1 if m[0] == text[at] else -1
        if depth == 0:
            return m.start()
    return -1


_CALL = re.compile(r"\b(operator\s*\(\s*\)|[A-Za-z_]\w*)\s*\(")
_NO_FUNCTION = {"if", "for", "while", "switch", "return", "sizeof", "catch", "alignas", "decltype"}


def _functions(blank, text):
    """([Function], [offset after the '(' of each kernel that is only declared])."""
    functions, declarations, at = [], [], 0
    while call := _CALL.search(blank, at):
        name, paren = re.sub(r"\s", "", call[1]), call.end() - 1
        at = call.end()
        close = match_bracket(blank, paren)
        if close < 0:
            break
        if name in _NO_FUNCTION:
            continue
        after = re.compile(
            r"\s*(?:const\b|noexcept\b|__attribute__\s*\(\(.*?\)\)|\s)*([{;])?"
        ).match(blank, close + 1)
        head = max(blank.rfind(c, 0, call.start()) for c in ";{}") + 1
        head += len(blank[head:]) - len(blank[head:].lstrip())
        declared = blank[head : call.start()]
        is_kernel = "__global__" in declared
        if after[1] == "{":
            brace = after.end() - 1
            end = match_bracket(blank, brace)
            end = len(blank) if end < 0 else end  # the compiler will complain better than we can
            functions.append(
                Function(name, head, call.start(1), paren, (brace + 1, end), is_kernel,
                         _template(declared), blank[paren + 1 : close])
            )  # fmt: skip
            at = end
        elif after[1] == ";" and is_kernel:
            declarations.append(paren + 1)
            at = close
    return functions, declarations


def _template(declared):
    found = re.search(r"\btemplate\s*<", declared)
    if not found:
        return []
    depth, end = 1, found.end()
    while depth and end < len(declared):
        depth += {"<": 1, ">": -1}.get(declared[end], 0)
        end += 1
    params = []
    for p in _split(declared[found.end() : end - 1]):
        p, _, default = (s.strip() for s in p.partition("="))
        word, _, name = p.rpartition(" ")
        params.append((word.strip(), name.strip(), default or None))
    return params


def _split(text):
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "(<[{":
            depth += 1
        elif c in ")>]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]

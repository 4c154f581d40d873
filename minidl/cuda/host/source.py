"""Reads a .cu file: finds its kernels, their parameters, and the form that each kernel needs.

    template <typename T> __global__ void scale(T* y, const T* x, T a, int n) {...}
              template parameters         name  Parameter Parameter ...       body

This code only scans the text (scan.py). It finds a barrier or a warp call by its name. Later the
compiler reads the same text. So if this code reads a signature wrongly, the compiler reports a type
error, and no wrong launch is possible.

Form:  flat   no barrier, warp call or __shared__ in the kernel or its functions: a loop is enough
       fibre  all others: threads must be able to wait for each other (kernels/host/fibre.cpp)
Test: tests/cuda/host/test_source.py   Tutorial: tutorials/02_add3.py
"""

import re
from pathlib import Path

from minidl.cuda.host import reach, scan
from minidl.cuda.host.includes import KernelError
from minidl.cuda.host.parameters import parse_parameter

# Words in code where a thread waits for other threads.
WAITS = re.compile(
    r"\b(__shared__|__syncthreads\w*|__syncwarp|__shfl\w*|__ballot\w*|__any_sync|__all_sync"
    r"|__activemask|__match_\w+|__reduce_\w+_sync"
    r"|cooperative_groups|this_thread_block|tiled_partition|coalesced_threads)\b")
# Features that the CPU runner does not have: {pattern that finds a feature: name of the feature}.
UNSUPPORTED = {
    r"\basm\b|\b__asm__\b": "inline PTX (asm)",
    r"\bwmma\b|\bmma_sync\b|\bnvcuda\b": "tensor cores (wmma)",
    r"\b__pipeline_\w+|\bmemcpy_async\b|\bcuda::pipeline\b|\bcp_async\w*":
        "asynchronous copies (cp.async)",
    r"<<<": "dynamic parallelism (<<<...>>>)",
    r"\bthis_grid\b|\bgrid_group\b|\bthis_cluster\b": "grid-wide synchronisation (grid.sync)",
    r"\btex[123]D\w*|\bsurf[123]D\w*|\bcudaTextureObject_t\b": "textures and surfaces",
    r"\bstd::|\bthrust::|\bcub::|\bcuda::std::": "the C++ standard library, Thrust and CUB",
    r"\b__nv_fp[864]\w*": "fp8, fp6 and fp4 types",
}


class Source:
    """The functions in the text of a file. text: the text with its includes, before or after the
    preprocessor. defines: macros."""

    def __init__(self, path, text, defines=None):
        self.path, self.defines = Path(path), dict(defines or {})
        self.text = scan.shared_first(text)
        self.blank = scan.blank_out(self.text)
        self.functions, self.declarations = scan.functions(self.blank)
        self.by_name = {}
        for f in self.functions:
            self.by_name.setdefault(f.name, []).append(f)
        self.pieces = reach.declarations(self.blank)
        self.types = {**scan.names_of_types(self.text, self.blank), **self.defines}

    @property
    def kernels(self):
        return [f for f in self.functions if f.is_kernel]

    def kernel(self, name):
        """Returns the Function of the kernel `name`. Ignores template arguments. Raises KernelError
        if there is no such kernel."""
        base = name.split("<")[0].strip()
        for f in self.kernels:
            if f.name == base:
                return f
        listed = ", ".join(dict.fromkeys(f.name for f in self.kernels)) or "none"
        raise KernelError(f"{self.path}: no kernel {base!r} in this file; it has: {listed}")

    def parameters(self, name):
        """Returns the Parameters of the kernel `name`. The name may be an instance: 'scale<float,
        4>'."""
        f = self.kernel(name)
        types = {**self.types, **self.template_arguments(name)}
        text = f.params
        if re.search(r"(^|,)\s*\w+\s*(,|$)", text):  # a macro stands for parameters
            lists = scan.lists_of_parameters(self.text)
            text = re.sub(r"\w+", lambda m: lists.get(m[0], m[0]), text)
        words = [p for p in scan.split_arguments(text) if p.strip() not in ("", "void")]
        return [parse_parameter(p, types) for p in words]

    def value_parameters(self, function):
        """Returns the names of the parameters that are not pointers."""
        values = [p for p in scan.split_arguments(function.params) if not re.search(r"[*\[]", p)]
        names = [re.search(r"(\w+)\s*(?:=.*)?$", p) for p in values]
        return [name[1] for name in names if name]

    def template_arguments(self, name):
        """Returns {template parameter: argument} for the name of an instance, such as 'scale<float,
        4>'. Returns {} for a kernel that is not a template. Raises KernelError if there are too few
        or too many arguments."""
        f, given = self.kernel(name), []
        if "<" in name:
            given = scan.split_arguments(name[name.index("<") + 1 : name.rindex(">")])
        if given and not f.template:
            raise KernelError(f"{self.path}: kernel {f.name!r} is not a template; ask for "
                              f"{f.name!r}")
        arguments = {}
        for i, (_, parameter, default) in enumerate(f.template):
            value = given[i].strip() if i < len(given) else default
            if value is None:
                example = ", ".join("float" if word in ("typename", "class") else "4"
                                    for word, _, _ in f.template)
                raise KernelError(
                    f"{self.path}: kernel {f.name!r} is a template and needs a value of "
                    f"{parameter!r}; ask for an instance, such as "
                    f"kernel(path, '{f.name}<{example}>')")
            arguments[parameter] = value
        if len(given) > len(f.template):
            raise KernelError(f"{self.path}: {name!r} has more arguments than the template "
                              f"{f.name!r} takes")
        return arguments

    def reach(self, name):
        """Returns the reach.Declarations of the code that the kernel `name` can run. The first one
        is the kernel's own."""
        kernel = self.kernel(name)
        words = re.findall(r"[A-Za-z_]\w*", f"{name} {self.blank[kernel.head : kernel.body[1]]}")
        own = [d for d in self.pieces if d.begin <= kernel.head < d.end]
        return own + [d for d in reach.reached(self.pieces, words) if d not in own]

    def reached_text(self, name):
        return "\n".join(self.blank[d.begin : d.end] for d in self.reach(name))

    def without_unreached(self, name):
        """Returns the text without the code that the kernel `name` cannot run. So an error in
        another function does not stop this kernel."""
        kept = self.reach(name)
        return self._without([d for d in self.pieces if d not in kept])

    def without_kernels(self, names):
        """Returns the text without these kernels, and without the code that only these kernels can
        run."""
        kept = [d for f in self.kernels if f.name not in names for d in self.reach(f.name)]
        bad = [d for name in names for d in self.reach(name)]
        return self._without([d for d in self.pieces if d in bad and d not in kept])

    def _without(self, lost):
        out, at = [], 0
        for d in lost:
            lines = self.text[d.begin : d.end].split("\n")
            # keeps the line marks of the preprocessor
            kept_lines = (line if re.match(r"#\s*\d", line) else "" for line in lines)
            out += [self.text[at : d.begin], "\n".join(kept_lines)]
            at = d.end
        return "".join([*out, self.text[at:]])

    def kernels_at(self, places):
        """Returns the names of the kernels that can run the code at one or more of these places.
        places: [(file name, line)]."""
        def holds(d):
            file, first = Path(self.file_of(d.begin)).name, self.line_of(d.begin)
            last = self.line_of(d.end)
            return any(name == file and first <= line <= last for name, line in places)

        bad = [d for d in self.pieces if holds(d)]
        return {f.name for f in self.kernels if any(d in bad for d in self.reach(f.name))}

    def form(self, name):
        """Returns 'flat' or 'fibre' (see the top of the file). A loop around a compare-and-swap may
        be a lock. Then threads wait, so the form is 'fibre'."""
        text = self.reached_text(name)
        loops = re.search(r"\b(while|do|for)\b", text)
        spins = loops and re.search(r"\batomic(CAS|Exch)\b|\bvolatile\b", text)
        for m in re.finditer(r"\bwhile\s*\(", text):
            spins = spins or "atomic" in text[m.end() : scan.match_bracket(text, m.end() - 1)]
        return "fibre" if WAITS.search(text) or spins else "flat"

    def line_of(self, offset):
        """Returns a line number of the original file, for the text at this offset. The
        preprocessor's marks, such as `# 12 "file"`, give the number."""
        before = self.text[:offset].split("\n")
        for i in range(len(before) - 1, -1, -1):
            if mark := re.match(r'#\s*(?:line\s+)?(\d+)\s+"', before[i]):
                return int(mark[1]) + len(before) - 1 - i - 1
        return len(before)

    def file_of(self, offset):
        """Returns the name of the file from which the text at this offset comes. Uses the
        preprocessor's marks."""
        marks = re.findall(r'^#\s*(?:line\s+)?\d+\s+"([^"]*)"', self.text[:offset], re.M)
        return marks[-1] if marks else str(self.path)

    def launch_bound(self, name):
        """Returns the largest number of threads of a block, as C++ text. The number comes from the
        kernel's __launch_bounds__. If there is no __launch_bounds__, returns "1024"."""
        f = self.kernel(name)
        if not (m := re.search(r"\b__launch_bounds__\s*\(", self.blank[f.head : f.open_paren])):
            return "1024"
        begin = f.head + m.end()
        inside = self.text[begin : scan.match_bracket(self.blank, begin - 1)]
        given = self.template_arguments(name)
        return re.sub(r"\w+", lambda m: f"({given[m[0]]})" if m[0] in given else m[0],
                      scan.split_arguments(inside)[0])

    def check_supported(self, name):
        """Raises KernelError if the kernel uses something that the CPU runner does not support."""
        for d in self.reach(name):
            for pattern, what in UNSUPPORTED.items():
                if found := re.search(pattern, self.blank[d.begin : d.end]):
                    at = d.begin + found.start()
                    user = next((f.name for f in self.functions if f.head <= at < f.body[1]), name)
                    raise KernelError(f"{self.path}:{self.line_of(at)}: {user} uses {what}, "
                                      "which the CPU runner does not support. Run it on a GPU "
                                      "(CuPy arrays). kernels/README.md lists what the CPU "
                                      "runner supports")

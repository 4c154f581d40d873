"""Runs a .cu file on the CPU: a C++ compiler makes a library, and Python calls it with ctypes.

    kernel.cu --preprocess--> text --parse, edit--> C++ --compile--> key.so
                 C++ = host headers + text + the kernel's launcher     (compiler.py: cached)
    flat form:   the launcher is a loop over the threads             (flat.py makes it fast)
    fibre form:  the launcher gives the kernel to the fibre engine   (kernels/host/fibre.cpp)
                 launchers.py writes both launchers

A launch compiles only one kernel of a file, because the compiler needs time to vectorise loops. To
compile all six kernels of softmax takes 0.9 s, and to compile one of them takes 0.3 s.

A few changes turn the text into C++. A kernel gets four more parameters before its own (threadIdx,
blockIdx, blockDim, gridDim). `extern __shared__ float s[]` becomes a pointer. In the fibre form,
each `return;` also records its line.
Test: tests/cuda/host/test_idioms.py, test_fibre.py
"""

import ctypes
import functools
import itertools
import json
import re
import struct
from pathlib import Path

import numpy as np

from minidl.cuda.host import compiler, shared, variables
from minidl.cuda.host.arguments import Signature
from minidl.cuda.host.includes import Edited, KernelError, inline_includes
from minidl.cuda.host.parameters import Parameter
from minidl.cuda.host.source import Source

FORMS = ("auto", "flat", "fibre", "check")


class Library:
    """A .cu file, compiled with one set of options. kernels: {name: CpuKernel}. variables: {name:
    Variable}."""

    def __init__(self, file):
        self.file = file
        runtime()  # loads the runtime library first, because a library of kernels calls it
        library = ctypes.CDLL(str(file))
        manifest = json.loads(ctypes.c_char_p.in_dll(library, "minidl_manifest").value)
        self.variables = variables.of(library)
        self.kernels = {name: CpuKernel(library, name, **about) for name, about in manifest.items()}


class CpuKernel:
    """One compiled kernel.

    form:     'flat' or 'fibre'.
    plain:    the launcher of a copy of the kernel without the edits of flat.py, or None. Only the
              flat form has this launcher.
    shuffles: True if the kernel has warp shuffles.
    tried:    True if selfcheck.py does not need to try the kernel again."""

    def __init__(self, library, name, number, form, parameters, dynamic_shared, shuffles, has_copy):
        self.name, self.form, self.shuffles = name, form, shuffles
        self.plain = library[f"minidl_plain_launch_{number}"] if has_copy else None
        parameters = [Parameter(**p) for p in parameters]
        sizes = {i: ctypes.c_int.in_dll(library, f"minidl_size_{number}_{i}").value
                 for i, p in enumerate(parameters) if p.has_struct}
        most = ctypes.c_int.in_dll(library, f"minidl_most_{number}").value
        self.signature = Signature(name, parameters, dynamic_shared, sizes, most)
        self.tried = False  # True if selfcheck.py need not try the kernel
        self.launcher = library[f"minidl_launch_{number}"]
        self.launcher.argtypes = [ctypes.c_char_p]
        self._pack, self._start = self.signature.pack_objects, runtime().minidl_start
        self._for_start = self._what_start_needs() if self.signature.names_objects else None
        self._files = self._stamp = None

    def __call__(self, grid, block, args, shared_mem=0, order=0, n_threads=1):
        packed = self._for_start and self._pack(grid, block, args, shared_mem, order, n_threads)
        failed = self._start(packed, self._for_start) if packed else -1
        # `failed` is negative if an argument is wrong, if only Python can check an argument, or if
        # it is time to look for changes of the files.
        if failed < 0:
            if self._files and self._files.differ(self._stamp):
                self._for_start = None  # other Kernels with this CpuKernel must not run old code
                raise Edited(f"kernel {self.name}: {self._files.path} has changed since it was "
                             "compiled")
            failed = self.launcher(self.signature.pack(grid, block, args, shared_mem, order,
                                                       n_threads))
        if failed:
            raise KernelError(f"kernel {self.name}: {runtime().minidl_error().decode()}")

    def watch(self, files, stamp):
        """After this call, a launch raises Edited and runs nothing if the files have changed since
        `stamp`. files: a Files. stamp: what files.stamp() returned."""
        self._files, self._stamp = files, stamp

    def _what_start_needs(self):
        """Returns the address of a struct Kernel of kernels/host/arrays.cpp. Returns None if
        NumPy's arrays do not have the memory layout that arrays.cpp expects."""
        if not arrays_are_known(runtime()):
            return None
        wanted, launcher = self.signature.wanted(), ctypes.cast(self.launcher, ctypes.c_void_p)
        n_bytes = 40 + 8 * len(self.signature.parameters)
        self._kernel = ctypes.create_string_buffer(
            struct.pack(f"=5Q{3 * len(wanted)}Q", launcher.value, id(np.ndarray), n_bytes, 0,
                        len(wanted), *itertools.chain(*wanted)))
        return ctypes.addressof(self._kernel)


def load(path, defines, name=None, form="auto"):
    """Returns the Library with the kernel `name` of the file at `path`, from the cache if possible.
    Else compiles it.

    name: the kernel's name, or an instance of a template, such as 'scale<float, 4>'. If None, the
    library has all kernels of the file.

    If a file has __device__ or __constant__ variables, all its kernels are in one library, because
    they may share these variables. Raises KernelError if the kernel is missing or does not
    compile."""
    text = inline_includes(path)
    if name and "<" not in name and _STATE.search(text):
        library = _load(path, text, defines, None, form)
        if name in library.kernels:
            return library
    return _load(path, text, defines, name, form)


_STATE = re.compile(r"\b__(?:device|managed|constant)__\s[^;(){}]*[;=\[]")


def _load(path, text, defines, name, form):
    chosen = compiler.find_compiler()
    flags = chosen.flags
    key = compiler.key_of(text, sorted(defines.items()), name, form, *flags, *generator())

    def build(code):
        # A fibre kernel spends its time in switches between threads. -O3 would not make it faster,
        # but would take longer to compile.
        more = ["-O2", *compiler.CAREFUL] if code.startswith(_FIBRE) else []
        arguments = [*flags, *more, f"-I{compiler.HOST}"]
        guarded = shared.with_guards(code) if more and chosen.kind == "gnu" else code
        if guarded != code:
            try:
                return compiler.build(key, arguments, guarded, str(path))
            except KernelError:  # the guards' union cannot hold the type, or the file has an error
                pass
        return compiler.build(key, arguments, code, str(path))

    return Library(compiler.cached(key) or generated(path, text, defines, name, form, build))


def generated(path, text, defines, name, form, build):
    """Returns build(code), where `code` is the C++ of the kernel `name`. If name is None, `code`
    has all kernels of the file that compile. So a kernel with an error does not stop the others.
    build: a function that gets C++ code. It raises KernelError if the code has an error."""
    without = set()
    while True:
        try:
            return build(generate(path, text, defines, name, form, without))
        except KernelError as error:
            places = re.findall(r"([^\s:/]+):(\d+):\d+: (?:fatal )?error", str(error))
            source = Source(path, text, defines)
            bad = source.kernels_at([(file, int(line)) for file, line in places]) - without
            without |= bad
            plain = {f.name for f in source.kernels if not f.template}
            if name or not bad or plain <= without:
                raise


@functools.cache
def generator():
    """Returns the texts of the Python files that write the C++ of a kernel. If one of these files
    changes, kernels are compiled again."""
    names = ("cpu.py flat.py launchers.py parameters.py reach.py scan.py selfcheck.py shared.py "
             "source.py variables.py").split()
    return [(Path(__file__).parent / name).read_text() for name in names]


_FIBRE = "#define MINIDL_FIBRE 1"


def generate(path, text, defines, name=None, form="auto", without=()):
    """Returns the C++ for `text`: the edited text and the launchers. text: the file's text with its
    includes.

    name:    the name of one kernel. If None, the C++ has every kernel that is not a template.
    without: names of kernels to leave out.
    Raises KernelError if there is no such kernel, or if the CPU runner does not support this
    kernel."""
    # These modules are imported only to compile, because their regular expressions take
    # milliseconds to prepare.
    from minidl.cuda.host import flat, launchers, selfcheck

    # __CUDA_ARCH__ is 800, as on an A100. If the CPU side lacks a feature of this architecture, an
    # error names the feature.
    options = ["-DMINIDL_HOST=1", "-D__CUDACC__=1", "-D__CUDA_ARCH__=800"]
    options += [f"-D{k}={v}" for k, v in defines.items()]
    # The preprocessor gets the compiler's flags. So `#ifdef __AVX512F__` has the same result in the
    # preprocessor and in the compiler.
    flags, whole = compiler.find_compiler().flags, text
    text = compiler.run(["-E", *flags, "-x", "c++", *options, "-"], text, str(path))
    source = Source(path, text, defines)
    if not source.kernels:
        raise KernelError(f"{path}: no __global__ function in this file")
    if name and name.split("<")[0].strip() not in (f.name for f in source.kernels):
        raise why_missing(Source(path, whole, defines), name)
    if name:
        source = Source(path, source.without_unreached(name), defines)
    elif without:
        source = Source(path, source.without_kernels(without), defines)
    names = [name] if name else [f.name for f in source.kernels if not f.template]
    plans, starts, manifest = {}, [], {}
    for name in dict.fromkeys(names):
        try:
            source.check_supported(name)
        except KernelError:
            if len(names) == 1:
                raise
            continue  # the file's other kernels can run. A launch of this kernel raises the error
        its_form = source.form(name) if form == "auto" else form
        kernel, parameters, number = source.kernel(name), source.parameters(name), len(manifest)
        arguments = [launchers.unpacked(p, i) for i, p in enumerate(parameters)]
        if its_form == "flat":
            plans[kernel.name] = plan = flat.plan(source, name)
            starts.append(launchers.flat(name, plan, number, parameters, arguments))
            # If nothing was edited, the loop runs the kernel's own text. Then no copy is needed.
            plan.has_copy = bool(plan.edits or plan.simd) and selfcheck.can_check(source, name)
            if plan.has_copy:
                starts.append(launchers.plain(f"minidl_plain_{name}", number, arguments))
        else:
            starts.append(launchers.fibre(name, number, arguments))
        most = source.launch_bound(name)
        starts.append(f"MINIDL_EXPORT const int minidl_most_{number} = {most};")
        # The library exports the size of a struct, so that Python can check an argument's size.
        starts += [f"MINIDL_EXPORT const int minidl_size_{number}_{i} = minidl_size<{p.ctype}>(0);"
                   for i, p in enumerate(parameters) if p.has_struct]
        manifest[name] = {
            "number": number, "form": its_form, "parameters": [vars(p) for p in parameters],
            "dynamic_shared": _uses_dynamic_shared(source, name),
            "shuffles": bool(re.search(r"\b__shfl|\bshfl", source.reached_text(name))),
            "has_copy": its_form == "flat" and plans[kernel.name].has_copy,
        }  # fmt: skip
    if names and not manifest:
        source.check_supported(names[0])
    has_fibres = any(about["form"] == "fibre" for about in manifest.values())
    text = _apply(source.text, _edits(source, plans, has_fibres))
    head = [_FIBRE] if has_fibres else []
    head.append('#include "cuda_host.h"')
    if "cooperative_groups" in text:
        head.append('#include "cooperative_groups.h"')
    raw = json.dumps(json.dumps(manifest))  # a C string literal. C and JSON have the same escapes
    return "\n".join([
        *head, text, '#line 1 "launchers made by minidl"', *starts,
        'extern "C" __attribute__((visibility("default"))) const char* minidl_manifest;',
        f"const char* minidl_manifest = {raw};"])


_DYNAMIC = re.compile(
    r"\bextern\s+__shared__\s+((?:(?:__align__|alignas)\s*\([^)]*\)|[\w:<>*,\s])+?)"
    r"\s*\b(\w+)\s*\[\s*\]\s*((?:\[[^\]]*\]\s*)*);")


def _uses_dynamic_shared(source, name):
    """Returns True if the kernel declares dynamic shared memory, or can run code that declares it.
    The launch then needs the argument `shared_mem`. reach.py says that a kernel reaches every
    struct with an operator, even if the kernel does not use the struct. Here, a declaration in a
    struct counts only if other reached code uses the name of the struct."""
    reached = source.reach(name)
    for d in reached:
        if not _DYNAMIC.search(source.blank[d.begin : d.end]):
            continue
        kind = re.match(r"\s*(?:template\s*<[^{;]*>\s*)?(?:struct|class)\s+(\w+)",
                        source.blank[d.begin : d.end])
        if not kind or any(kind[1] in other.words for other in reached
                           if kind[1] not in other.names):
            return True
    return False


def _edits(source, plans, has_fibres):
    """Returns [(begin, end, new text)]: the edits that turn the file into C++. plans: {name of a
    flat kernel: Plan}."""
    edits = [(at, at, _hidden("", source.blank[at:])) for at in source.declarations]
    edits += [(at, at, f" MINIDL_VARIABLE({name}, {int(is_const)})")
              for at, name, is_const in variables.declared(source)]
    for f in source.functions:
        if not f.is_kernel:
            continue
        plan = plans.get(f.name)
        index = f", {plan.index_type} minidl_x" if plan and plan.linear else ""
        at = f.open_paren + 1
        edits.append((at, at, _hidden(index, source.blank[at:])))
        if plan:
            edits += plan.edits
            if plan.has_copy:
                edits.append((f.body[1] + 1, f.body[1] + 1, _copy(source, f)))
        if has_fibres and not plan:
            for m in re.finditer(r"\breturn\s*;", source.blank[f.body[0] : f.body[1]]):
                at = f.body[0] + m.start()
                edits.append((at, at + len(m[0]), "return minidl_returned(__FILE__, __LINE__);"))
    for m in _DYNAMIC.finditer(source.blank):
        c_type = re.sub(r"(__align__|alignas)\s*\([^)]*\)", "", m[1])
        rows = ""
        if m[3]:  # s[][32] becomes a pointer to rows of 32 elements
            rows, c_type = f"typedef {c_type} minidl_row_{m[2]}{m[3]}; ", f"minidl_row_{m[2]}"
        pointer = f"{rows}{c_type}* const {m[2]} = ({c_type}*)minidl_dynamic_shared();"
        is_for_all = any(d.begin == m.start() for d in source.pieces)
        edits.append((m.start(), m.end(), "" if is_for_all else pointer))
        if is_for_all:  # the array is global, so each function that uses it gets the pointer
            for f in source.functions:
                if re.search(rf"\b{m[2]}\b", source.blank[f.body[0] : f.body[1]]):
                    edits.append((f.body[0], f.body[0], pointer))
    edits += [(m.start(), m.end(), "__shared__ __align__")
              for m in re.finditer(r"__shared__\s+alignas(?=\s*\()", source.blank)]
    return edits


def _copy(source, f):
    """Returns the text of the kernel f, a Function. Only the kernel's name is changed, to
    minidl_plain_<name>."""
    head = source.text[f.head : f.open_paren]
    head = re.sub(r"\bextern\s*\"C\"|\b(?:static|inline|__forceinline__)\b", "", head)
    head = head.replace("__global__", "static __attribute__((noinline))")
    head = re.sub(rf"\b{f.name}(\s*)$", rf"minidl_plain_{f.name}\1", head)
    hidden = _hidden("", source.blank[f.open_paren + 1 :])
    rest = source.text[f.open_paren + 1 : f.body[1] + 1]
    # the lines after the copy must keep their numbers
    line = source.line_of(f.body[1] + 1)
    return f"\n{head}({hidden}{rest}\n# {line} \"{source.file_of(f.body[1] + 1)}\"\n"


def _hidden(index, after):
    """Returns the text of the parameters that a kernel gets before its own parameters. index: "" or
    the text of one more parameter. after: the text after the kernel's '('."""
    return f"MINIDL_BUILTINS{index}" + ("" if re.match(r"\s*\)", after) else ", ")


def _apply(text, edits):
    """Returns `text` after these edits, (begin, end, new text). The last edit is made first, so
    that the offsets of the other edits do not change."""
    for begin, end, new in sorted(edits, key=lambda e: (e[0], e[1]), reverse=True):
        # the lines after the edit must keep their numbers
        lost_lines = "\n" * (text[begin:end].count("\n") - new.count("\n"))
        text = text[:begin] + new + lost_lines + text[end:]
    return text


@functools.cache
def runtime():
    """Returns the runtime library: the thread pool and the fibres."""
    flags = compiler.find_compiler().runtime_flags
    library = compiler.load_host("runtime", flags, "runtime.cpp", "fibre.cpp", "guard.cpp",
                                 "switch.cpp", "arrays.cpp", "replay.cpp")
    library.minidl_error.restype = ctypes.c_char_p
    library.minidl_start.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.minidl_replay.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return library


@functools.cache
def arrays_are_known(library):
    """Returns True if arrays.h knows the memory layout of the installed NumPy's arrays. library: a
    ctypes.CDLL whose code includes arrays.h."""
    a = np.empty(3)
    what = id(a), id(np.ndarray), a.ctypes.data, id(a.dtype)
    return bool(library.minidl_knows_arrays(*map(ctypes.c_void_p, what), a.flags.num))


def why_missing(source, name, alone=False):
    """Returns a KernelError that tells why the library of a file has no kernel `name`. source: the
    Source of the text before preprocessing. alone: if True, compiles only this kernel, to get its
    error."""
    try:
        source.parameters(name)
        source.check_supported(name)
        if alone:
            text = inline_includes(source.path)
            _load(source.path, text, source.defines, name, "auto")
    except KernelError as error:  # this kernel does not compile
        return error
    return KernelError(f"{source.path}: kernel {name!r} is left out by an #if in the file")

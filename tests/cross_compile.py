"""Compiles the CPU form of every kernel for other processors: make cross.

    python -m pytest -p tests.cross_compile TESTS   records which kernels the tests load, and how
    python -m tests.cross_compile                   compiles these for every target

The compiler is zig's clang, which includes the headers of every system. No kernel is run. The
program prints each kernel that does not compile, with its first error. Then the exit status is
1."""

import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

from minidl.cuda.host import compiler, cpu
from minidl.cuda.host.includes import KernelError

ROOT = Path(__file__).resolve().parents[1]
NOTED = ROOT / "build" / "cross_compile.jsonl"

Target = namedtuple("Target", "machine cpu")  # platform.machine(), and the oldest MINIDL_CPU
TARGETS = {
    "x86_64-linux-gnu": Target("x86_64", "x86-64"),
    "aarch64-linux-gnu": Target("aarch64", "generic"),
    "aarch64-macos": Target("arm64", "apple-m1"),
}


def pytest_configure(config):
    """Records every loaded kernel as a line of JSON."""
    load = cpu._load
    NOTED.parent.mkdir(exist_ok=True)

    def noting(path, text, defines, name, form):
        with open(NOTED, "a") as file:
            file.write(json.dumps([str(path), text, defines, name, form]) + "\n")
        return load(path, text, defines, name, form)

    cpu._load = noting


def noted():
    """Returns [(path, text, defines, name, form)] of the recorded kernels. Each kernel is in the
    list once."""
    lines = dict.fromkeys(NOTED.read_text().splitlines())
    return [json.loads(line) for line in lines]


def zig():
    wheel = importlib.util.find_spec("ziglang")
    if wheel is None:
        sys.exit("cross_compile: no ziglang; `make cross` brings it")
    return str(Path(wheel.submodule_search_locations[0]) / "zig")


def choose(triple):
    """Makes the compiler build for this target from now on."""
    target = TARGETS[triple]
    os.environ["MINIDL_CXX"] = f"{zig()} c++ -target {triple}"
    os.environ["MINIDL_CPU"] = target.cpu
    platform.machine = lambda: target.machine


def compile_only(arguments, text, describe):
    """Compiles `text` to an object file, and deletes this file."""
    source = ["-x", "c++", "-"] if text is not None else []
    with tempfile.TemporaryDirectory() as folder:
        compiler.run([*arguments, *source, "-c", "-o", f"{folder}/object.o"], text, describe)


def compile_kernel(path, text, defines, name, form):
    def build(code):
        compile_only([*compiler.find_compiler().flags, f"-I{compiler.HOST}"], code, path)

    cpu.generated(path, text, defines, name, form, build)


def failures(triple, kernels):
    """Returns {kernel that does not compile for the target: its error}."""
    choose(triple)
    found, flags = {}, compiler.find_compiler().runtime_flags
    for file in sorted(compiler.HOST.glob("*.cpp")):
        try:
            compile_only([*flags, str(file)], None, file.name)
        except KernelError as error:
            found[f"host/{file.name}"] = str(error)
    for kernel in kernels:
        path, _, defines, name, form = kernel
        try:
            compile_kernel(*kernel)
        except KernelError as error:
            found[f"{Path(path).name} {name or ''} {defines} {form}"] = str(error)
    return found


def main():
    kernels, status = noted(), 0
    for triple in sys.argv[1:] or TARGETS:
        found = failures(triple, kernels)
        print(f"{triple}: {len(kernels)} kernels, {len(found)} do not compile", flush=True)
        for what, error in found.items():
            print(f"  {what}\n    " + "\n    ".join(error.splitlines()[:4]))
            status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()

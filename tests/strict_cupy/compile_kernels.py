"""Compiles recorded kernels exactly as CuPy would on a GPU: its options, its compiler, no driver.

    STRICT_CUPY_KERNELS=build/gpu_kernels make test-gpu-sim        records what the tests launch
    .venv-cupy/bin/python tests/strict_cupy/compile_kernels.py build/gpu_kernels [80 90 100]

Fails where one does not compile, or where ptxas spills registers into memory. So it is every
instance that training uses, with the macros, the name expressions and the options of that call."""

import io
import json
import re
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ARCHITECTURES = ("80", "90", "100")  # A100, H100, B200


def without_stand_in():
    """The real CuPy, although this script lies beside the stand-in."""
    here = Path(__file__).parent.resolve()
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != here]
    warnings.simplefilter("ignore")  # "CUDA path could not be detected"


def compiled(job):
    """(what was asked, its architecture, {kernel: (registers, spilled bytes)}, error)."""
    record, arch = job
    without_stand_in()
    import cupy
    from cupy.cuda import compiler

    compiler._get_arch_for_options_for_nvrtc = (  # the real one asks the device
        lambda arch=None: (f"-arch=sm_{arch}", "cubin"))
    options = cupy._core.core.assemble_cupy_compiler_options(tuple(record["options"]))
    options += ("-ftz=true", "--ptxas-options=-v")  # the first as CuPy adds it
    log = io.StringIO()
    try:
        compiler._compile_using_nvrtc_no_warning(
            record["code"], options, arch, "kernel.cu", record["name_expressions"], log)
    except Exception as error:  # CompileException holds the source, and does not travel
        return record, arch, {}, str(error)
    return record, arch, usage(log.getvalue()), ""


def usage(log):
    """{kernel: (registers, spilled bytes)} of ptxas' log."""
    found = {}
    for entry in re.split(r"Compiling entry function '", log)[1:]:
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", entry)))
        found[entry.split("'")[0]] = int(re.search(r"Used (\d+) registers", entry)[1]), spills
    return found


def what(record):
    """'layer_norm.cu KEEP=8 T=__half layer_norm_v3'"""
    file = re.search(r'^#line 1 ".*?([^/"]+\.cu)"', record["code"], re.M)
    macros = dict(re.findall(r"^#define (\w+) (.*)$", record["code"].split("#line 1")[0], re.M))
    return " ".join([file[1] if file else "?", *(f"{k}={v}" for k, v in sorted(macros.items())),
                     *(record["name_expressions"] or ())])


def main(folder, *architectures):
    records = [json.loads(f.read_text()) for f in sorted(Path(folder).glob("*.json"))]
    if not records:
        print(f"no kernels in {folder}: record them first")
        return 1
    jobs = [(record, arch) for record in records for arch in architectures or ARCHITECTURES]
    bad = n_kernels = most = 0
    with ProcessPoolExecutor() as pool:
        for record, arch, kernels, error in pool.map(compiled, jobs):
            n_kernels += len(kernels)
            most = max([most, *(registers for registers, _ in kernels.values())])
            for name, (registers, spills) in kernels.items():
                if spills and name_of(record, name):
                    error += f"{name} spills {spills} bytes ({registers} registers)\n"
            if error:
                bad += 1
                print(f"sm_{arch} {what(record)}: {error}")
    print(f"{len(records)} modules, {len(jobs)} compilations the way CuPy does them, "
          f"{n_kernels} kernels, at most {most} registers: {bad} failed")
    return bool(bad)


def name_of(record, mangled):
    """Whether this kernel of the file is one that was launched: the file's other rungs are
    compiled with it, for shapes they are not meant for."""
    return any(name.split("<")[0] in mangled for name in record["launched"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

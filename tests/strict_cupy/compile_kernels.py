"""Compiles recorded kernels exactly as CuPy would on a GPU: its options, its compiler, no driver.

    STRICT_CUPY_KERNELS=build/gpu_kernels ... record_training.py     records what training launches
    .venv-cupy/bin/python tests/strict_cupy/compile_kernels.py build/gpu_kernels [80 90 100]

Fails where one does not compile, or where ptxas spills registers into memory. So it is every
instance that training uses, with the macros, the name expressions and the options of that call;
those of one text are compiled together, without the file's kernels that nobody launched."""

import io
import json
import re
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from kernel_table import lean, macros

ARCHITECTURES = ("80", "90", "100")  # A100, H100, B200


def without_stand_in():
    """The real CuPy, although this script lies beside the stand-in."""
    here = Path(__file__).parent.resolve()
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != here]
    warnings.simplefilter("ignore")  # "CUDA path could not be detected"


def recorded(folder):
    """[(text, options, launched kernels)], a line for each text and its options."""
    texts = {}
    for file in sorted(Path(folder).glob("*.json")):
        record = json.loads(file.read_text())
        key = record["code"], tuple(record["options"])
        texts.setdefault(key, set()).update(record["launched"])
    return [(*key, sorted(launched)) for key, launched in texts.items()]


def compiled(text, options, launched, arch):
    """({kernel: (registers, spilled bytes)}, error)."""
    without_stand_in()
    import cupy
    from cupy.cuda import compiler

    compiler._get_arch_for_options_for_nvrtc = (  # the real one asks the device
        lambda arch=None: (f"-arch=sm_{arch}", "cubin"))
    options = cupy._core.core.assemble_cupy_compiler_options(options)
    options += ("-ftz=true", "--ptxas-options=-v")  # the first as CuPy adds it
    log = io.StringIO()
    try:
        compiler._compile_using_nvrtc_no_warning(
            lean(text, launched), options, arch, "kernel.cu", tuple(launched), log)
    except Exception as error:  # CompileException holds the source, and does not travel
        return {}, str(error)
    return usage(log.getvalue()), ""


def usage(log):
    """{kernel: (registers, spilled bytes)} of ptxas' log."""
    found = {}
    for entry in re.split(r"Compiling entry function '", log)[1:]:
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", entry)))
        found[entry.split("'")[0]] = int(re.search(r"Used (\d+) registers", entry)[1]), spills
    return found


def what(text, launched):
    """'layer_norm.cu KEEP=8 T=__half layer_norm_v3'"""
    file = re.search(r'^#line 1 ".*?([^/"]+\.cu)"', text, re.M)
    return " ".join([file[1] if file else "?", macros(text), *launched])


def main(folder, *architectures):
    texts = recorded(folder)
    if not texts:
        print(f"no kernels in {folder}: record them first")
        return 1
    bad = n_kernels = most = 0
    with ProcessPoolExecutor() as pool:
        jobs = {pool.submit(compiled, *text, arch): (text, arch)
                for text in texts for arch in architectures or ARCHITECTURES}
        for job in as_completed(jobs):
            ((text, _, launched), arch), (kernels, error) = jobs[job], job.result()
            n_kernels += len(kernels)
            for name, (registers, spills) in kernels.items():
                most = max(most, registers)
                if spills:
                    error += f"{name} spills {spills} bytes ({registers} registers)\n"
            if not error and len(kernels) != len(launched):
                error = f"compiled {sorted(kernels)}, launched {launched}"
            if error:
                bad += 1
                print(f"sm_{arch} {what(text, launched)}: {error}", flush=True)
    print(f"{len(texts)} modules, {len(jobs)} compilations the way CuPy does them, "
          f"{n_kernels} kernels, at most {most} registers: {bad} failed")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

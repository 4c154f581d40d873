"""Compiles recorded kernels exactly as CuPy would on a GPU: its options, its compiler, no driver.

    STRICT_CUPY_KERNELS=build/gpu_kernels ... record_training.py     records what training launches
    .venv-cupy/bin/python tests/strict_cupy/compile_kernels.py build/gpu_kernels [80 90 100]

Fails where one does not compile, or where ptxas spills registers into memory. So it is every
instance that training uses, with the macros, the name expressions and the options of that call;
those of one text are compiled together, without the file's kernels that nobody launched. What
ptxas said is kept in build/gpu_logs: a kernel that has not changed is not compiled again."""

import hashlib
import io
import json
import os
import re
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kernel_table import lean, macros

from minidl.cuda import nvrtc

ARCHITECTURES = ("80", "90", "100")  # A100, H100, B200
LOGS = Path(__file__).resolve().parents[2] / "build" / "gpu_logs"


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


def compiled(code, options, launched, arch):
    """({kernel: (registers, spilled bytes)}, error, was it compiled now)."""
    without_stand_in()
    import cupy
    from cupy.cuda import compiler

    compiler._get_arch_for_options_for_nvrtc = (  # the real one asks the device
        lambda arch=None: (f"-arch=sm_{arch}", "cubin"))
    options = cupy._core.core.assemble_cupy_compiler_options(options)
    options += ("-ftz=true", "--ptxas-options=-v")  # the first as CuPy adds it
    by = cupy.__version__, compiler._get_nvrtc_version()
    name = hashlib.sha256(repr((code, options, launched, arch, by)).encode()).hexdigest()
    kept = LOGS / f"{name}.txt"
    if kept.exists():
        return usage(kept.read_text(), arch), "", False
    log = io.StringIO()
    try:
        compiler._compile_using_nvrtc_no_warning(
            code, options, arch, "kernel.cu", tuple(launched), log)
    except Exception as error:  # CompileException holds the source, and does not travel
        return {}, str(error), True
    LOGS.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_suffix(f".{os.getpid()}")
    unfinished.write_text(log.getvalue())
    unfinished.replace(kept)
    return usage(log.getvalue(), arch), "", True


def usage(log, arch):
    """{kernel: (registers, spilled bytes)} of ptxas' log."""
    return {u.kernel: (u.registers, u.spills) for u in nvrtc._usages(log, arch, ())}


def what(text, launched):
    """'layer_norm.cu KEEP=8 T=__half layer_norm_v3'"""
    file = re.search(r'^#line 1 ".*?([^/"]+\.cu)"', text, re.M)
    return " ".join([file[1] if file else "?", macros(text), *launched])


def main(folder, *architectures):
    texts = recorded(folder)
    if not texts:
        print(f"no kernels in {folder}: record them first")
        return 1
    n_bad = 0
    with ProcessPoolExecutor() as pool:
        jobs = {arch: [] for arch in architectures or ARCHITECTURES}
        leans = [lean(text, launched) for text, _, launched in texts]
        for arch in jobs:
            jobs[arch] = [pool.submit(compiled, code, options, launched, arch)
                          for code, (_, options, launched) in zip(leans, texts, strict=True)]
        print("arch     modules  compiled now  kernels  most registers  spill  failed")
        for arch, waiting in jobs.items():
            rows, failed, n_compiled = [], 0, 0
            for (text, _, launched), job in zip(texts, waiting, strict=True):
                kernels, error, now = job.result()
                rows += kernels.values()
                n_compiled += now
                for name, (registers, spills) in kernels.items():
                    if spills:
                        error += f"{name} spills {spills} bytes ({registers} registers)\n"
                if not error and len(kernels) != len(launched):
                    error = f"compiled {sorted(kernels)}, launched {launched}"
                if error:
                    failed += 1
                    print(f"sm_{arch} {what(text, launched)}: {error}", flush=True)
            n_bad += failed
            print(f"sm_{arch:4} {len(waiting):8} {n_compiled:13} {len(rows):8} "
                  f"{max((r for r, _ in rows), default=0):15} {sum(s > 0 for _, s in rows):6} "
                  f"{failed:7}", flush=True)
    return bool(n_bad)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

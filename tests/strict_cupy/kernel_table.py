"""Registers, shared memory and spills of every kernel instance that training launches on a GPU, by
NVIDIA's compiler, without a GPU and without CuPy: `make kernel-table`.

    python tests/strict_cupy/kernel_table.py [gpt2] [sm_80 sm_90 sm_100]

The instances come from the sources: record_training.py trains on the stand-in, which notes what
reaches CuPy. Fails where one does not compile or spills registers into memory."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minidl.cuda import nvrtc
from minidl.cuda.host.source import Source

HERE = Path(__file__).resolve().parent
ARCHITECTURES = "sm_80", "sm_90", "sm_100"  # A100, H100, B200


def recorded(what=()):
    """{text of a module: kernels launched of it}, in the order of the files' names."""
    modules = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")])
        subprocess.run([sys.executable, HERE / "record_training.py", *what], check=True,
                       env={**os.environ, "PYTHONPATH": path, "STRICT_CUPY_KERNELS": folder})
        for file in Path(folder).glob("*.json"):
            record = json.loads(file.read_text())
            modules.setdefault(record["code"], set()).update(record["launched"])
    return modules


def macros(code):
    """'E=64 T=__half': what stands between NVIDIA's headers and ours."""
    head = code[: code.index("#line 1")].splitlines()
    words = (line.split(" ", 2) for line in head if line.startswith("#define"))
    return " ".join(f"{name}={value}" for _, name, value in words)


def lean(code, launched):
    """The text with what these kernels can run alone: ptxas takes each by itself, so the others
    would change nothing, and take most of the time."""
    source = Source("kernel.cu", code)
    reached = {d for name in launched for d in source.reach(name)}
    return source._without([d for d in source.pieces if d not in reached])


def usages(code, launched, arch):
    """[Usage] of the kernels launched; the file's other rungs are for other shapes."""
    log = nvrtc.compile_log(Path("kernel.cu"), lean(code, launched), ["-ftz=true"], arch,
                            sorted(launched))
    kernels = [f.name for f in Source("kernel.cu", code).kernels]
    # a rung's name may be the end of another's: the whole name, or the mangled one, which holds it
    return [u for u in nvrtc._usages(log, arch, kernels) if u.kernel.split()[0] in launched]


def main(*words):
    what = [w for w in words if not w.startswith("sm_")]
    modules = recorded(what)
    jobs = [(code, names, arch) for code, names in modules.items()
            for arch in [w for w in words if w.startswith("sm_")] or ARCHITECTURES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC releases the GIL, as all of ctypes
        found = list(pool.map(lambda job: usages(*job), jobs))
    rows = [(u, macros(code)) for (code, *_), some in zip(jobs, found, strict=True) for u in some]
    rows.sort(key=lambda row: (row[0].kernel, row[1], row[0].arch))
    print(nvrtc.table([]), " macros")
    for u, which in rows:
        print(nvrtc.table([u]).splitlines()[1], "", which)
    spilled = sum(u.spills > 0 for u, _ in rows)
    print(f"{len(modules)} modules, {len(rows)} kernels, at most "
          f"{max(u.registers for u, _ in rows)} registers; {spilled} spill")
    return int(spilled > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""`minidl doctor`: prints what is installed, whether it works, and how to repair it.

    ok     the program or library is installed and has been tried
    --     it is not installed. The line tells what works without it
    !!     it is broken. The exit status of `minidl doctor` is then 1
    ->     how to repair or install it

Every check uses the program or library that it checks. For example, it starts two ranks, compiles a
file, or runs a kernel on the GPU. An MPI or CUDA library of the wrong version may crash. So such a
library is tried in another process.

Test: tests/cli/test_main.py
"""

import ctypes
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import namedtuple
from importlib import metadata
from pathlib import Path

from minidl.cli import doctor_links, machine, numa
from minidl.cli.machine import vendor_of
from minidl.text import tr

Finding = namedtuple("Finding", "mark name text fix", defaults=("", ))
OK, WITHOUT, BROKEN = "ok", "--", "!!"

SECONDS = 30  # the limit for each program. The slowest program, CuPy's first import, takes 10 s


def main(links=None, peaks=None):
    """Prints every finding. Returns the exit status: 0 if minidl is usable, otherwise 1. links,
    peaks: the lists of numbers after --links and --peaks, or None. If one list is not None, main()
    only measures: it prints no findings."""
    if links is not None:
        return doctor_links.main(links or [2, 4])
    if peaks is not None:
        return measure_peaks(peaks or sorted({1, machine.n_cores()}))
    findings = []
    for check in (package, python, numpy, mpi, ranks, nodes, compiler, gpu, torch, pictures):
        for finding in check():
            findings.append(finding)
            print(f"{finding.mark}  {finding.name:10} {tr(finding.text)}", flush=True)
            if finding.fix:
                print(f"{'':14}-> {tr(finding.fix)}", flush=True)
    broken = [f.name for f in findings if f.mark == BROKEN]
    if broken:
        print("\n" + tr(f"Not usable yet: {', '.join(broken)}."))
        return 1
    print("\n" + tr("minidl is usable here."))
    return 0


def measure_peaks(numbers):
    """`--peaks`: measures this machine's best speed with each number of threads, and stores the
    speeds. Each number of threads needs its own process, because BLAS reads this number only when
    BLAS is loaded. Returns the exit status."""
    code = ("from minidl import cuda; from minidl.profile import peaks\n"
            "for d in ['cpu', *['cuda'] * cuda.is_available()]: print(peaks.store(d))\n")
    return max(subprocess.run([sys.executable, "-c", code],
                              env=machine.environment(1, n)).returncode for n in numbers)


def package():
    """Yields the Finding about this minidl: its version, its folder, its kernels. The functions
    below, one for each check, also yield Findings."""
    from minidl import __version__, checkout

    kernels = checkout.ROOT / "kernels"
    there = any(kernels.glob("*.cu"))
    yield Finding(OK if there else BROKEN, "minidl", f"{__version__}, {checkout.origin()}; kernels "
                  f"are those in {kernels}" if there else f"{__version__}, {checkout.origin()}; no "
                  f"kernels in {kernels}",
                  "" if there else "install it again: pip install --force-reinstall minidl")


def python():
    """Checks the version of Python."""
    is_old = sys.version_info < (3, 11)
    yield Finding(BROKEN if is_old else OK, "Python",
                  f"{platform.python_version()} at {sys.executable}",
                  "minidl needs 3.11 or newer" if is_old else "")


def numpy():
    """Checks the version of NumPy. Tells which BLAS NumPy uses, and with how many threads."""
    if not installed("numpy"):
        yield Finding(BROKEN, "NumPy", "not installed", "pip install 'numpy>=2.0'")
        return
    import numpy as np

    if int(np.__version__.split(".")[0]) < 2:
        yield Finding(BROKEN, "NumPy", np.__version__,
                      "minidl needs NumPy 2's dtype promotion: pip install -U numpy")
        return
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    cores, fix = machine.n_cores(), ""
    n_threads = f"up to {cores} threads"
    if installed("threadpoolctl"):  # an optional package, which scikit-learn also installs
        import threadpoolctl

        pools = threadpoolctl.threadpool_info()
        n = max((p["num_threads"] for p in pools if p["user_api"] == "blas"), default=1)
        n_threads = f"{n} thread{'s' * (n != 1)}"
        if n > cores:
            fix = f"more threads than cores: export OMP_NUM_THREADS={cores}"
    blas = f"BLAS {blas['name']} {blas.get('version', '')}"
    yield Finding(OK, "NumPy", f"{np.__version__}, {blas}, {n_threads} on {cores} cores", fix)


def mpi():
    """Checks mpi4py and the MPI library that it loads."""
    if not installed("mpi4py"):
        yield Finding(WITHOUT, "mpi4py",
                      "not installed: there is only one process; scripts run with --sim 4",
                      "pip install 'minidl[mpi]'")
        return
    found = mpi_library()
    if "error" in found:
        yield Finding(BROKEN, "mpi4py", f"cannot load an MPI library: {found['error']}",
                      "pip install mpich, or load your site's MPI module and pip install "
                      "--force-reinstall mpi4py")
    else:
        yield Finding(OK, "mpi4py", f"{found['mpi4py']} with {found['vendor']} {found['version']}")


def mpi_library():
    """Returns a dict with the keys "mpi4py", "vendor" and "version", for the MPI library that
    mpi4py loads. If the library cannot be loaded, the dict has only the key "error"."""
    return _ask_python(
        "import json, mpi4py\n"
        "mpi4py.rc.initialize = mpi4py.rc.finalize = False\n"  # load the library without MPI_Init
        "from mpi4py import MPI\n"
        "name, version = MPI.get_vendor()\n"
        "version = '.'.join(map(str, version))\n"
        "print(json.dumps(dict(mpi4py=mpi4py.__version__, vendor=name, version=version)))\n")


def ranks():
    """Checks mpiexec: it starts two ranks, and these must find each other."""
    mpiexec = machine.find_mpiexec()
    if mpiexec is None:
        mark = BROKEN if installed("mpi4py") else WITHOUT
        yield Finding(mark, "mpiexec", "not found next to this Python or on the PATH",
                      "pip install mpich; on Debian and Ubuntu: sudo apt install mpich")
        return
    vendor = vendor_of(mpiexec)
    if installed("mpi4py"):
        yield two_ranks(mpiexec, vendor)
    else:
        yield Finding(OK, "mpiexec", f"{vendor} at {mpiexec}")


def two_ranks(mpiexec, vendor):
    """Starts two ranks. Each prints its rank and the number of ranks. Returns a Finding."""
    code = (
        "import sys; from mpi4py import MPI\n"
        "threads = 'ok' if MPI.Query_thread() == MPI.THREAD_MULTIPLE else 'few'\n"
        # each rank writes its line in one call, so that the lines of two ranks cannot mix
        "sys.stdout.write(f'I am {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size} {threads}\\n')\n")
    done = _run([mpiexec, "-n", "2", sys.executable, "-c", code], env=machine.environment(2))
    if done is None:
        return Finding(
            BROKEN, "mpiexec", f"{vendor} at {mpiexec}: two ranks did not start within {SECONDS} s",
            "is this machine's own name resolvable (ping $(hostname))? Is a VPN or firewall in the "
            "way?")
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("I am"))
    if said == ["I am 0 of 2 ok", "I am 1 of 2 ok"]:
        return Finding(OK, "mpiexec", f"{vendor} at {mpiexec}: started 2 ranks")
    return diagnose(mpiexec, vendor, said, done.stderr + done.stdout)


def diagnose(mpiexec, vendor, said, output):
    """Returns the Finding that tells why the two ranks did not become ranks 0 and 1 of 2. said: the
    lines that the ranks printed. output: all output of mpiexec."""
    last = [line for line in output.splitlines() if line.strip()][-3:]
    text = f"two ranks did not start: {' / '.join(last) or 'no output'}"
    fix = f"try it by hand: {mpiexec} -n 2 hostname"
    if said == ["I am 0 of 2 few", "I am 1 of 2 few"]:
        text = ("started 2 ranks, but MPI does not allow calls from several threads at once "
                "(THREAD_MULTIPLE); communication in the background needs this")
        fix = "pip install mpich, or remove mpi4py.rc settings that lower thread_level"
    elif said and all(line.startswith("I am 0 of 1") for line in said):
        text = "every process prints 'rank 0 of 1', so this mpiexec is not from mpi4py's MPI"
        fix = ("use the mpiexec of mpi4py's MPI (minidl run --mpiexec PATH), or pip install mpich "
               "into this environment")
    elif "root" in output and "allow" in output.lower():
        text = "mpiexec refuses to run as root"
        fix = ("export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (`minidl run` "
               "sets these variables, unless you have set them)")
    elif "not enough slots" in output:
        text = "not enough slots for 2 ranks"
        fix = "mpirun --oversubscribe (`minidl run` asks for it), or a larger allocation"
    return Finding(BROKEN, "mpiexec", f"{vendor} at {mpiexec}: {text}", fix)


def nodes():
    """Lists the NUMA nodes. Also starts two ranks, bound as by `minidl run --bind numa`, and tells
    on which nodes the ranks and their memory are."""
    mpiexec, told = machine.find_mpiexec(), []
    if mpiexec is not None:
        try:
            options = numa.options(vendor_of(mpiexec), "numa", 2, 1, machine.n_cores())
        except numa.BindError:
            options = []
        done = options and _run([mpiexec, *options, "-n", "2", sys.executable, numa.__file__],
                                env=machine.environment(2))
        told = [json.loads(line) for line in re.findall("NUMA (.*)", done.stdout if done else "")]
    lines = numa.report(told)
    yield Finding(OK, "NUMA", f"\n{'':14}".join(lines))


def compiler():
    """Checks the C++ compiler for kernels, and the folder for compiled kernels."""
    found, named = cpp_compiler(), os.environ.get("MINIDL_CXX")
    if found is None:
        text = "no working C++ compiler: .cu files cannot run on this CPU"
        yield Finding(
            BROKEN if named else WITHOUT, "compiler",
            f"the compiler MINIDL_CXX={named} does not work" if named else text,
            "on Debian and Ubuntu: sudo apt install g++; anywhere: pip install 'minidl[zig]'")
        return
    from minidl.cuda.host.compiler import cache_folder

    kept = cache_folder()
    if kept:
        yield Finding(OK, "compiler", f"{' '.join(found)} compiles C++17; kernels go to {kept}")
    else:
        yield Finding(WITHOUT, "compiler", f"{' '.join(found)} compiles C++17, but the folder for "
                      "compiled kernels cannot be written, so each process compiles again",
                      "export MINIDL_CACHE=a folder of yours")


def cpp_compiler():
    """Returns the command of the compiler that kernels use, or None if it cannot compile C++17."""
    from minidl.cuda import KernelError
    from minidl.cuda.host.compiler import find_compiler

    text = ("#include <cmath>\n"
            'extern "C" float f(float x) { if constexpr (true) return std::sqrt(x); }\n')
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.cpp")
        source.write_text(text)
        arguments = ["-std=c++17", "-shared", "-fPIC", str(source), "-o", f"{folder}/try.so"]
        try:
            command = find_compiler().command
        except KernelError:
            return None
        # 4 times the usual limit, because zig's first compilation also builds zig's C library
        done = _run([*command, *arguments], 4 * SECONDS)
    return command if done and done.returncode == 0 else None


def gpu():
    """Checks CuPy, the NVIDIA driver and the GPU: compiles a kernel and runs it."""
    driver = _driver()
    if not installed("cupy"):
        fix = ""
        if driver:
            extra = "cuda13" if driver >= (13, 0) else "cuda12"
            cuda = f"{driver[0]}.{driver[1]}"
            fix = f"there is a driver for CUDA {cuda}: pip install 'minidl[{extra}]'"
        yield Finding(WITHOUT, "GPU", "CuPy is not installed: everything runs on the CPU", fix)
        return
    found = _ask_python(
        "import json, cupy\n"
        "n = cupy.cuda.runtime.getDeviceCount()\n"
        "names = [cupy.cuda.runtime.getDeviceProperties(i)['name'].decode() for i in range(n)]\n"
        # RawKernel is used, because its compilation also shows whether CUDA's headers are missing
        "k = cupy.RawKernel('extern \"C\" __global__ void f(float* x) { x[0] = 1; }', 'f')\n"
        "x = cupy.zeros(1, 'f'); k((1,), (1,), (x,)); assert x[0] == 1\n"
        "print(json.dumps(dict(cupy=cupy.__version__, names=names,\n"
        "                      cuda=cupy.cuda.runtime.runtimeGetVersion())))\n")
    if "error" not in found:
        cuda = f"{found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}"
        yield Finding(OK, "GPU", f"{', '.join(found['names'])}; CuPy {found['cupy']}, CUDA {cuda}")
    elif driver is None:
        yield Finding(WITHOUT, "GPU",
                      f"CuPy is installed, but no NVIDIA driver answers: {found['error']}",
                      "nvidia-smi must list the GPU; in a container: docker run --gpus all")
    else:
        yield Finding(
            BROKEN, "GPU", f"CuPy does not run on the GPU: {found['error']}",
            f"the driver is for CUDA {driver[0]}.{driver[1]}: the installed cupy-cuda12x or "
            "cupy-cuda13x must not be newer; pip install 'cupy-cuda12x[ctk]' brings CUDA's headers")


def _driver():
    """Returns (major, minor) of the newest CUDA that the NVIDIA driver supports, or None if there
    is no driver."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0 or library.cuInit(0) != 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def torch():
    """Looks for PyTorch, which only tests and benchmarks use."""
    if installed("torch"):
        version = metadata.version("torch")
        yield Finding(OK, "PyTorch", f"{version}: tests and benchmarks compare with it")
    else:
        yield Finding(WITHOUT, "PyTorch",
                      "not installed; minidl does not need it, but comparisons are skipped")


def pictures():
    """Looks for the packages that the tutorials use."""
    missing = [p for p in ("matplotlib", "sklearn", "tqdm") if not installed(p)]
    if missing:
        yield Finding(WITHOUT, "tutorials",
                      f"not installed: {', '.join(missing)} (pictures, digits, progress bars)",
                      "pip install 'minidl[tutorials]'")
    else:
        yield Finding(OK, "tutorials", "matplotlib, scikit-learn, tqdm")


def installed(name):
    return importlib.util.find_spec(name) is not None


def _run(command, seconds=SECONDS, **options):
    """Runs a command. Returns the ended process with its output. Returns None if the process did
    not start, or did not end in time."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds,
                              stdin=subprocess.DEVNULL, **options)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _ask_python(code):
    """Runs `code` in another process. Returns the JSON in the last line of the output. If the
    process failed, returns {"error": the last line of its output}."""
    done = _run([sys.executable, "-c", code])
    if done is None:
        return {"error": f"no answer within {SECONDS} s"}
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    words = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return {"error": words[-1] if words else f"ended with status {done.returncode}"}

"""Fixtures, options and decorators for all tests."""

import collections
import functools
import gc
import inspect
import itertools
import os
import random
import re
import signal
import zlib
from pathlib import Path

import pytest

# Keeps kernels that tests compile between runs, in a folder apart from the user's kernels.
# Subprocesses inherit it. benchmarks/gpu_day.py sets another folder.
os.environ["MINIDL_CACHE"] = (os.environ.get("MINIDL_TESTS_CACHE")
                              or str(Path(__file__).parents[1] / "build" / "kernels"))
# One BLAS thread: the tests' matrices are small, and several files and ranks share the cores. A
# second thread would keep a core busy while it waits, and starting it takes 0.1 s.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A waiting rank sleeps, so that other ranks and other test files can use the core. By default
# MPICH's and Open MPI's ranks check for messages without a pause: 4 ranks on 2 cores then take
# twice the CPU time.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
# `make test` runs slow tests in a short form. `make test-every` and CI run the whole form.
EVERY = os.environ.get("MINIDL_EVERY_SIZE") == "1"
STEPS = 50 if EVERY else 5  # training steps that are compared with the steps of one rank
whole_form = pytest.mark.skipif(not EVERY, reason="takes seconds: make test-every")
# Some tests send Ctrl-C. By default a shell's background jobs and their children ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ranks(*sizes, mpi=True):
    """Decorator: runs the test body `body(t, ...)` on every rank of a group, for each group size.
    If there are three or more sizes, the short form runs every second size (`dealt`).

    Here the ranks are simulated. One test runs all sizes, because thousands of tests would cost
    pytest more time than their bodies. tests/mpi/ runs the same body under mpiexec if `mpi` is
    True. Other parameters of the body come from pytest as usual: put parametrize above this
    decorator, with values and not fixtures. Import: `from tests.conftest import ranks`.
    """

    def decorate(body):
        def test(**kwargs):
            from minidl.comm import simulate

            for n_ranks in dealt(sizes_for_device(sizes), f"{body.__name__}{kwargs}"):
                try:
                    simulate(n_ranks, lambda t: body(t, **kwargs))
                except Exception as error:
                    error.add_note(f"{body.__name__} on {n_ranks} ranks")
                    raise

        parameters = list(inspect.signature(body).parameters.values())[1:]
        # device="cpu" is the default under MPI; here the fixture sets `device`
        test.__signature__ = inspect.Signature(
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty)
             for p in parameters]
        )
        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.body, test.sizes = body, sizes if mpi else ()
        return test

    return decorate


def each_once(*lists):
    """Returns rows for parametrize. Every value of every list is in at least one row. Row i has the
    i-th value of each list. A shorter list starts again at its end. The whole form (EVERY) has all
    products. Use each_once() if the values do not depend on each other and a case takes long."""
    if EVERY:
        return list(itertools.product(*lists))
    return [tuple(each[i % len(each)] for each in map(list, lists))
            for i in range(max(map(len, lists)))]


def some(rows, of=2):
    """Returns every `of`-th row for parametrize, or all rows in the whole form (EVERY). Use some()
    if the cases are similar and take long."""
    return list(rows) if EVERY else list(rows)[::of]


def n_drawn(short, whole=None):
    """Returns how many random cases a test draws: `short`, or `whole` in the whole form (EVERY).
    With MINIDL_TIMES=10 in the environment, returns ten times as many."""
    return int(os.environ.get("MINIDL_TIMES", "1")) * (whole if EVERY and whole else short)


def dealt(sizes, name):
    """Returns every second group size if there are three or more. The test's name decides whether
    these are the even or the odd places, so different cases of a test run different sizes. Returns
    all sizes in the whole form (EVERY)."""
    if EVERY or len(sizes) < 3:
        return sizes
    return sizes[zlib.crc32(name.encode()) % 2::2]


def sizes_for_device(sizes):
    """Returns the group sizes that run on the device where tests/on_device.py places arrays. On the
    CPU all sizes run. On a GPU sizes up to 4 run. But all sizes run if MINIDL_EVERY_SIZE=1 is in
    the environment, and only size 2 runs with MINIDL_EVERY_SIZE=0."""
    from tests import on_device

    most = {"0": (2,), "": (1, 2, 3, 4)}.get(os.environ.get("MINIDL_EVERY_SIZE", ""))
    if on_device.DEVICE == "cpu" or not most:
        return sizes
    chosen = [n for n in sizes if n in most]
    return chosen or pytest.skip(f"device arrays at {most} ranks; MINIDL_EVERY_SIZE=1: at {sizes}")


@pytest.fixture
def device(request):
    """Returns "cpu". In a second case returns "cuda", if CuPy finds a GPU or is the stand-in
    strict_cupy/."""
    return getattr(request, "param", "cpu")


@pytest.fixture
def on_device(device, monkeypatch):
    """Lets tests/on_device.py place arrays on the device. Group sizes come from
    sizes_for_device."""
    monkeypatch.setattr("tests.on_device.DEVICE", device)


def pytest_generate_tests(metafunc):
    """Makes the cases of the fixture `device`. Without a GPU there is no case "cuda", so no case is
    skipped."""
    if "device" not in metafunc.fixturenames:
        return
    for mark in metafunc.definition.iter_markers("parametrize"):
        assert mark.args[0] not in ("device", ["device"]), (
            f"{metafunc.function.__name__}: `device` is tests/conftest.py's; give another name")
    if not why_no_gpu():
        cases = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
        metafunc.parametrize("device", cases, indirect=True)


@pytest.fixture
def strict_cupy():
    """Installs the stand-in as the module `cupy` in this process while the test runs. Afterwards
    clears the notes of bad indices. Otherwise the next test that waits for the GPU raises their
    error."""
    from tests.devices import notes, stand_in

    with stand_in() as cupy:
        yield cupy
        assert not notes(cupy)


def pytest_ignore_collect(collection_path, config):
    """With `-m gpu`, collects only files with tests that are marked `gpu`. Importing all files
    takes longer than running these tests."""
    if config.getoption("markexpr") == "gpu" and collection_path.name.startswith("test_"):
        return True if not re.search(_FOR_A_GPU, collection_path.read_text()) else None


_FOR_A_GPU = r"mark\.gpu|def test\w*\([^)]*\bdevice\b"


def pytest_addoption(parser):
    parser.addoption("--seed-order", type=int, metavar="N",
                     help="shuffles the tests with this seed: no test may depend on an earlier one")


@pytest.hookimpl(trylast=True)  # after -k and -m, so that it sees the chosen tests
def pytest_collection_modifyitems(config, items):
    """Without a GPU, leaves out the tests marked `gpu`, unless the user chose only these tests. One
    line reports this. Thousands of skipped tests would hide the other skipped tests. With several
    processes (`make test`) long files run early (`long_files_first`). --seed-order N shuffles the
    tests."""
    if hasattr(config, "workerinput"):  # this is a process of pytest-xdist
        place = {path: i for i, path in enumerate(long_files_first(items))}
        items.sort(key=lambda item: place[item.path])  # stable: a file's tests stay in order
    if (seed := config.getoption("seed_order")) is not None:
        random.Random(seed).shuffle(items)
    if config.getoption("markexpr") == "gpu":
        return
    left_out = set() if EVERY else products(items)
    for_a_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if why_no_gpu() and 1 < len(for_a_gpu) < len(items):
        left_out.update(for_a_gpu)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def long_files_first(items):
    """Returns the files of these tests, so ordered that no process gets a long file at the end.

    Files with many slow tests are the first. These tests often wait for other processes. So after
    each such file come two files without slow tests, which keep the cores busy in the meantime. The
    tutorials' files are the longest of these."""
    n_slow = collections.Counter(
        item.path for item in items
        if item.get_closest_marker("slow") or item.get_closest_marker("mpi"))
    others = dict.fromkeys(item.path for item in items if item.path not in n_slow)
    others = iter(sorted(others, key=lambda path: path.parent.name != "tutorials"))
    ordered = []
    for path, _ in n_slow.most_common():
        ordered += [path, *itertools.islice(others, 2)]
    return [*ordered, *others]


def pytest_collection():
    """Stops the garbage collector while tests are collected. The number of objects grows to
    millions, hardly any of them is garbage, and each full collection scans all of them."""
    gc.disable()


def pytest_collection_finish():
    """Freezes all present objects. So the garbage collector need not scan these objects, which
    takes 0.3 s with thousands of tests."""
    gc.enable()
    gc.set_threshold(20_000, 20, 20)
    gc.collect()
    gc.freeze()


def products(items):
    """Returns the cases that the short form leaves out, for each test with several parametrize
    marks. The remaining cases have every value of every argument, as in `each_once`."""
    cases = collections.defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            cases[item.path, item.originalname].append(item)
    left_out = set()
    for (_, name), same in cases.items():
        axes = []  # for each mark, the place of each case's value
        for mark in same[0].iter_markers("parametrize"):
            names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
            values = [id(case.callspec.params[names.split(",")[0].strip()]) for case in same]
            places = {value: place for place, value in enumerate(dict.fromkeys(values))}
            axes.append([places[value] for value in values])
        longest = max(axes, key=max, default=())
        shift = zlib.crc32(name.encode())  # tests keep different parts of their products
        for i, case in enumerate(same):
            if any(axis is not longest and axis[i] != (longest[i] + shift) % (1 + max(axis))
                   for axis in axes):
                left_out.add(case)
    return left_out


def pytest_report_header():
    """Returns a line that says where the tests marked `gpu` run, or why they are left out."""
    if reason := why_no_gpu():
        return f"gpu: left out ({reason}); `make test-gpu-sim` runs them on a stand-in"


def pytest_runtest_setup(item):
    """Skips a chosen test marked `gpu` if there is no GPU, with the reason."""
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)


@functools.cache
def why_no_gpu():
    """Returns None if CuPy finds a GPU, else a sentence with the reason."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'minidl[cuda12]' or 'minidl[cuda13]'"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no GPU: {error}"


@pytest.fixture
def needs_compiler():
    """Skips the test if no kernel can be compiled, with the reason."""
    from minidl.cuda import KernelError
    from minidl.cuda.host import compiler

    try:
        compiler.find_compiler()
    except KernelError as error:
        pytest.skip(str(error))

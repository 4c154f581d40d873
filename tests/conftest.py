"""What all tests share."""

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

# Kernels that tests compile are kept between runs, apart from the user's own; subprocesses inherit.
# benchmarks/gpu_day.py has another folder for them.
os.environ["MINIDL_CACHE"] = (os.environ.get("MINIDL_TESTS_CACHE")
                              or str(Path(__file__).parents[1] / "build" / "kernels"))
# The tests' matrices are small, and several files and ranks share the cores: a second BLAS thread
# waits for work with its core, and a process that starts one takes a tenth of a second longer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A rank that waits sleeps: other ranks, and other test files, have the core. By default MPICH's and
# Open MPI's ranks look for messages all the time, and 4 ranks on 2 cores take twice the work.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
# `make test` runs what takes long in a short form; `make test-every` and CI run the whole.
EVERY = os.environ.get("MINIDL_EVERY_SIZE") == "1"
STEPS = 50 if EVERY else 5  # of training that is compared with one rank's
whole_form = pytest.mark.skipif(not EVERY, reason="takes seconds: make test-every")
# Some tests send Ctrl-C, which a shell's background jobs ignore, and their children with them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ranks(*sizes, mpi=True):
    """Decorator: run the test body `body(t, ...)` on every rank of a group, for each group size
    (of three and more sizes every second one: `dealt`).

    Here the ranks are simulated, all sizes in one test: thousands of tests would cost pytest more
    than the bodies take. tests/mpi/ runs the same body under mpiexec, where `mpi` allows it. Other
    parameters of the body come from pytest as usual (parametrize goes above this decorator, with
    values and not fixtures). Import: `from tests.conftest import ranks`.
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
        # device="cpu": under MPI the default, here the fixture
        test.__signature__ = inspect.Signature(
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty)
             for p in parameters]
        )
        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.body, test.sizes = body, sizes if mpi else ()
        return test

    return decorate


def each_once(*lists):
    """Rows for parametrize with every value of every list in at least one of them: row i has the
    i-th of each, round and round. In the whole form (EVERY) all products. Where values do not
    depend on each other, and a case takes long."""
    if EVERY:
        return list(itertools.product(*lists))
    return [tuple(each[i % len(each)] for each in map(list, lists))
            for i in range(max(map(len, lists)))]


def some(rows, of=2):
    """Rows for parametrize: the first of each `of` of them, in the whole form (EVERY) all. Where
    cases are alike, and take long."""
    return list(rows) if EVERY else list(rows)[::of]


def dealt(sizes, name):
    """Of three and more group sizes those at even places or those at odd ones, as the test's name
    has it: its other cases run on the others. In the whole form (EVERY) all."""
    if EVERY or len(sizes) < 3:
        return sizes
    return sizes[zlib.crc32(name.encode()) % 2::2]


def sizes_for_device(sizes):
    """Those of the group sizes that run where tests/on_device.py places arrays: on the CPU all, on
    a GPU up to 4; there with MINIDL_EVERY_SIZE=1 in the environment all, with =0 2 alone."""
    from tests import on_device

    most = {"0": (2,), "": (1, 2, 3, 4)}.get(os.environ.get("MINIDL_EVERY_SIZE", ""))
    if on_device.DEVICE == "cpu" or not most:
        return sizes
    chosen = [n for n in sizes if n in most]
    return chosen or pytest.skip(f"device arrays at {most} ranks; MINIDL_EVERY_SIZE=1: at {sizes}")


@pytest.fixture
def device(request):
    """The CPU; and in a case beside it "cuda", where CuPy finds a GPU or is strict_cupy/."""
    return getattr(request, "param", "cpu")


@pytest.fixture
def on_device(device, monkeypatch):
    """What tests/on_device.py places is on the device, at the numbers of ranks that
    sizes_for_device allows."""
    monkeypatch.setattr("tests.on_device.DEVICE", device)


def pytest_generate_tests(metafunc):
    """Without a GPU there is no case for it, rather than one that skips."""
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
    """The stand-in as the module `cupy`, in this process, while the test runs. It leaves no note of
    a bad index: the next test that waits would be told."""
    from tests.devices import notes, stand_in

    with stand_in() as cupy:
        yield cupy
        assert not notes(cupy)


def pytest_ignore_collect(collection_path, config):
    """`-m gpu` reads only files with such tests: to import all takes longer than to run these."""
    if config.getoption("markexpr") == "gpu" and collection_path.name.startswith("test_"):
        return True if not re.search(_FOR_A_GPU, collection_path.read_text()) else None


_FOR_A_GPU = r"mark\.gpu|def test\w*\([^)]*\bdevice\b"


def pytest_addoption(parser):
    parser.addoption("--seed-order", type=int, metavar="N",
                     help="tests in an order drawn with this seed: none may need another before it")


@pytest.hookimpl(trylast=True)  # after -k and -m: what is asked for alone is not left out
def pytest_collection_modifyitems(config, items):
    """Without a GPU the tests marked `gpu` are left out, in one line, unless somebody asks for them
    alone: thousands that skip would hide others that do. Several processes (`make test`) take files
    with many slow tests first: none is left to one process at the end. --seed-order N shuffles."""
    if hasattr(config, "workerinput"):  # of pytest-xdist
        is_slow = [item.path for item in items
                   if item.get_closest_marker("slow") or item.get_closest_marker("mpi")]
        n_slow = collections.Counter(is_slow)
        items.sort(key=lambda item: -n_slow[item.path])  # stable: a file's tests stay in order
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


def pytest_collection_finish():
    """All that there is now stays to the end: a collection of garbage need not look through it,
    which with thousands of tests takes 0.3 s."""
    gc.collect()
    gc.freeze()


def products(items):
    """Of each test with several parametrize marks the cases that its short form leaves out: what
    stays has every value of every argument, as in `each_once`."""
    cases = collections.defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            cases[item.path, item.originalname].append(item)
    left_out = set()
    for (_, name), same in cases.items():
        axes = []  # for each mark which of its values each case has
        for mark in same[0].iter_markers("parametrize"):
            names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
            values = [id(case.callspec.params[names.split(",")[0].strip()]) for case in same]
            places = {value: place for place, value in enumerate(dict.fromkeys(values))}
            axes.append([places[value] for value in values])
        longest = max(axes, key=max, default=())
        shift = zlib.crc32(name.encode())  # for each test another part of its products
        for i, case in enumerate(same):
            if any(axis is not longest and axis[i] != (longest[i] + shift) % (1 + max(axis))
                   for axis in axes):
                left_out.add(case)
    return left_out


def pytest_report_header():
    """Where the tests marked `gpu` are."""
    if reason := why_no_gpu():
        return f"gpu: left out ({reason}); `make test-gpu-sim` runs them on a stand-in"


def pytest_runtest_setup(item):
    """A test marked `gpu` that is asked for skips where there is no GPU, and says why."""
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)


@functools.cache
def why_no_gpu():
    """None where CuPy finds a GPU, else a sentence."""
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
    """Skip, saying why, where no kernel can be compiled."""
    from minidl.cuda import KernelError
    from minidl.cuda.host import compiler

    try:
        compiler.find_compiler()
    except KernelError as error:
        pytest.skip(str(error))

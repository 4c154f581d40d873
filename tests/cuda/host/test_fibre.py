"""A kernel whose threads wait wrongly ends with a sentence that says who waits where, not with a
hang or a wrong result."""

import threading
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda

FILE = Path(__file__).parent / "mistakes.cu"


def line_of(text, occurrence=0):
    """Line numbers by content, so that the file may be edited."""
    lines = [i for i, line in enumerate(FILE.read_text().splitlines(), 1) if text in line]
    return lines[occurrence]


def message(name, block, *args):
    with pytest.raises(cuda.KernelError) as caught:
        cuda.kernel(FILE, name)(1, block, args)
    return str(caught.value)


def ints(n=64):
    return np.zeros(n, np.int32)


def floats(n=64):
    return np.zeros(n, np.float32)


@pytest.mark.parametrize("order", ["ascending", "descending", 3])
def test_divergent_barrier_tells_lines_and_counts(order):
    with pytest.raises(cuda.KernelError) as caught:
        cuda.kernel(FILE, "divergent", order=order)(1, 64, (floats(), 16))
    wait, gone = line_of("__syncthreads();"), line_of("return;")
    text = str(caught.value)
    assert "divergent barrier" in text
    assert (
        f"16 threads wait at line {wait}" in text and f"48 threads returned at line {gone}" in text
    )


def test_barriers_on_two_lines_are_two_barriers():
    text = message("two_lines", 64, floats())
    a, b = line_of("__syncthreads();", 1), line_of("__syncthreads();", 2)
    assert f"16 threads wait at line {a}" in text and f"48 threads wait at line {b}" in text


def test_barrier_in_a_branch():
    assert "48 threads returned at the end of the kernel" in message("branch", 64, floats())


def test_a_warp_that_comes_to_the_end_has_missed_a_barrier_in_a_branch():
    """One that leaves by `return` as a whole has not: warps_leave in test_idioms.py."""
    text = message("end_without_return", 96, floats())
    assert "divergent barrier" in text
    assert "64 threads returned at the end of the kernel" in text


@pytest.mark.parametrize(
    "name, block, sentence",
    [
        ("wrong_mask", 32, "reads from lane 16, which has returned"),
        ("not_named", 32, "lane 16 of warp 0 calls with mask 0x0000ffff, which does not name it"),
        ("reads_returned", 32, "reads from lane 5, which has returned"),
        ("ragged", 48, "lane 0 of warp 1 reads from lane 16, which does not exist"),
        ("waits_forever", 32, "deadlock: 8 threads wait in a warp call at line"),
        ("asserts", 32, "assertion failed: threadIdx.x < 3 (thread (3, 0, 0))"),
        # on a busy machine the watchdog may come before the count of atomics
        ("spins", 32, "an atomic is repeated without end|of processor time without an end"),
    ],
)
def test_wrong_waiting_is_named(name, block, sentence):
    text = message(name, block, ints())
    assert any(words in text for words in sentence.split("|")), text


def test_a_failed_launch_leaves_the_engine_sound():
    message("divergent", 64, floats(), 16)
    x = floats()
    cuda.kernel(FILE, "divergent")(1, 64, (x, 64))
    assert (x == 1).all()


def test_unsupported_feature_is_named_with_its_line():
    text = message("mma", 32, floats())
    assert (
        f"mistakes.cu:{line_of('asm volatile')}" in text and "inline PTX" in text and "mma" in text
    )


def test_every_thread_has_its_own_stack():
    # 1024 threads with 16 KiB of locals each, alive across barriers
    x = np.zeros(1024, np.float32)
    cuda.kernel(FILE, "big_locals")(1, 1024, (x,))
    np.testing.assert_array_equal(x, np.arange(1024) * 2)


def test_many_blocks_on_several_cpu_threads_equal_one():
    before = cuda.set_threads(4)
    try:
        x = np.full(2100 * 64, -1, np.float32)
        visits = np.zeros(2000, np.int32)
        cuda.kernel(FILE, "block_local")(2000, 64, (x, visits))
    finally:
        cuda.set_threads(before)
    block, thread = np.divmod(np.arange(2000 * 64), 64)
    np.testing.assert_array_equal(x[: 2000 * 64], block * 64 + (63 - thread))
    assert (x[2000 * 64 :] == -1).all() and (visits == 1).all()  # each block once, none beyond


def test_device_functions_see_the_thread_after_a_switch():
    x = ints(256).reshape(2, 2, 64)
    cuda.kernel(FILE, "helper_after_barrier")((2, 2), (8, 8), (x,))
    np.testing.assert_array_equal(x.ravel(), np.arange(256))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists the mappings")
def test_a_cpu_thread_that_ends_gives_its_stacks_back():
    """Red before: 640 MiB of address space, and what was touched of it, for each thread."""
    kernel = cuda.kernel(FILE, "divergent", form="fibre")

    def after(n_threads):
        for _ in range(n_threads):
            x = floats()
            thread = threading.Thread(target=kernel, args=(1, 64, (x, 64)))
            thread.start()
            thread.join()
            assert (x == 1).all()
        return len(Path("/proc/self/maps").read_text().splitlines())

    before = cuda.set_threads(1)
    try:
        # 128 mappings for the guards of each one's stacks; join() may be sooner than the last end
        assert after(2) + 5 * 128 > after(20)
    finally:
        cuda.set_threads(before)

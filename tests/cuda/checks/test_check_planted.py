"""Each kernel of planted.cu has one bug; the check form finds it by its name, at its line."""

import re
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda

FILE = Path(__file__).parent / "planted.cu"
LINES = FILE.read_text().splitlines()


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def ints(values):
    return np.array(values, np.int32)


def run(name, grid, block, *args, **options):
    return cuda.check(FILE, grid, block, args, name=name, **options)


# name: (launch, kind of the first finding, words of its text)
PLANTED = {
    "guard_off_by_one": (
        (2, 64, zeros(100), floats(100), 100),
        "out of bounds",
        "thread 36 of block 1 reads x[100], but x has 100",
    ),
    "no_guard": ((2, 64, zeros(100), floats(100), 100), "out of bounds", "27 more accesses"),
    "negative_index": (
        (2, 64, zeros(100), floats(100), 100),
        "out of bounds",
        "thread 0 of block 0 reads x[-1]",
    ),
    "wrong_stride": (
        ((1, 5), 64, zeros(5, 40), floats(5, 40), 5, 40),
        "double write",
        "block (0, 1) writes out[5]",
    ),
    "grid_stride_too_small": (
        (2, 32, zeros(100), floats(100), 100),
        "race between blocks",
        "block 1 reads out[32]",
    ),
    "missing_barrier": (
        (1, 64, zeros(64), floats(64)),
        "data race",
        "thread 32 writes s[32], thread 31 read it at line 33",
    ),
    "missing_second_barrier": (
        ((2, 2), (16, 16), zeros(32, 32), floats(32, 32), floats(32, 32), 32, 32),
        "data race",
        "As[0][0]",
    ),
    "divergent_barrier": (
        (1, 64, zeros(64), floats(64)),
        "divergent barrier",
        "48 threads wait at line 54",
    ),
    "return_before_barrier": (
        (1, 64, zeros(64), floats(64), 40),
        "divergent barrier",
        "24 threads returned at line 64",
    ),
    "wrong_mask": (
        (1, 32, zeros(32), floats(32)),
        "wrong mask",
        "lane 16 of warp 0 calls with mask 0x0000ffff",
    ),
    "mask_of_lanes_elsewhere": (
        (1, 32, zeros(32), floats(32)),
        "deadlock",
        "lanes 0xffff0000 of it have not come",
    ),
    "shuffle_from_exited_lane": (
        (1, 32, zeros(32), floats(32), 20),
        "shuffle from an exited lane",
        "lane 20, which has returned",
    ),
    "misaligned_float4": (
        (1, 32, zeros(128), floats(128), 128),
        "misaligned access",
        "x[1] as a float4",
    ),
    "vector_past_the_end": (
        (1, 32, zeros(128), floats(126), 126),
        "out of bounds",
        "thread 31 reads x[126]",
    ),
    "unwritten_shared": (
        (1, 64, zeros(1), floats(50), 50),
        "read of unwritten shared memory",
        "thread 18 reads s[50]",
    ),
    "race_in_reduction": (
        (1, 64, zeros(64), floats(64)),
        "data race",
        "reads s[0], thread 0 wrote it at line 120",
    ),
    "missing_syncwarp": (
        (1, 32, zeros(1), floats(32)),
        "data race",
        "thread 1 writes s[1], thread 0 read it",
    ),
    "histogram_without_atomic": (
        (2, 64, ints([0] * 4), ints(np.arange(100) % 4), 100),
        "data race",
        "reads bins[0]",
    ),
    "plain_beside_atomic": (
        (1, 64, ints([0]), ints(range(64)), 64),
        "data race",
        "thread 1 atomically changed it",
    ),
    "double_write": (
        (3, 32, zeros(80), floats(80), 80),
        "double write",
        "writes out[31], thread 31 of block 0 wrote it",
    ),
    "stale_read": (
        (3, 32, floats(90), 90),
        "race between blocks",
        "thread 0 of block 1 writes x[32], thread 31 of block 0 read it",
    ),
    "stale_read_of_block": (
        (3, 32, zeros(3), floats(3)),
        "race between blocks",
        "block 1 reads sums[0]",
    ),
    "shared_index_overflow": (
        (1, 64, zeros(64), floats(64)),
        "out of bounds",
        "index 64 of s, a float [64]",
    ),
    "shared_overflow_by_pointer": (
        (1, 64, zeros(64)),
        "out of bounds",
        "writes s[48], but s has 48 elements",
    ),
    "dynamic_shared_too_small": (
        (1, 64, zeros(64), floats(64)),
        "out of bounds",
        "writes s[32], but the launch gave shared_mem=128, 32 elements",
    ),
    "write_to_const": (
        (1, 64, floats(64), zeros(64)),
        "write to a const array",
        "thread 0 writes x[0]",
    ),
    "division": (
        (1, 64, ints([0] * 64), ints(range(64)), ints(range(63, -1, -1))),
        "division by zero",
        "thread 63",
    ),
    "adds_to_an_output": (
        (1, 64, zeros(64), floats(64)),
        "read of uninitialised output",
        "reads out[0]",
    ),
    "null_pointer": ((1, 32, zeros(32), None), "out of bounds", "NULL pointer"),
    "wild_index": (
        (1, 32, zeros(32), floats(32), ints(range(32))),
        "out of bounds",
        "far from all arrays",
    ),
    "local_array": ((1, 32, zeros(32), floats(32), 6), "out of bounds", "index 4 of v, a float"),
    "local_array_before": (
        (1, 32, zeros(32), floats(32), -2),
        "out of bounds",
        "index -2 of v, a float [4]",
    ),
    "plain_then_atomic": (
        (1, 64, ints([0]), ints(range(64))),
        "data race",
        "thread 1 atomically changes total[0], thread 0 wrote it",
    ),
    "shared_of_another_block": (
        (2, 32, zeros(64), floats(32)),
        "read of unwritten shared memory",
        "of block 1 reads s[",
    ),
    "read_elsewhere_then_changed": (
        (2, 32, floats(32), zeros(32)),
        "race between blocks",
        "thread 0 of block 1 writes x[0], thread 0 of block 0 read it",
    ),
    "read_by_two_then_written": (
        (1, 64, zeros(64), floats(2)),
        "data race",
        "thread 63 writes first, thread 62 read it",
    ),
    "local_too_large": ((1, 4, zeros(4), 180000), "stack overflow", "more than 512 KiB"),
}
OPTIONS = {
    "race_in_reduction": {"shared_mem": 256},
    "dynamic_shared_too_small": {"shared_mem": 128},
    "adds_to_an_output": {"outputs": ["out"]},
    "shared_of_another_block": {"orders": ["ascending"]},  # descending, nobody has written at all
}


@pytest.mark.parametrize("name", PLANTED)
def test_bug_is_found_by_name_at_its_line(name):
    (grid, block, *args), kind, words = PLANTED[name]
    args = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    report = run(name, grid, block, *args, **OPTIONS.get(name, {}))
    found = [f for f in report.errors if f.kind == kind and words in f.text]
    assert found, f"wanted {kind!r} with {words!r}, got:\n{report}"
    begin, end = _lines_of(name)
    for f in report.errors:
        assert f.remedy and (
            f.file == "planted.cu"
            and begin <= f.line <= end
            or f.kind in ("result depends on thread order", "too much local memory")
        )


def _lines_of(name):
    """First and last line of a kernel, with a device function above it."""
    at = next(i for i, line in enumerate(LINES) if f"void {name}(" in line)
    begin = (
        at
        if not LINES[at - 1].strip()
        else next(i for i in range(at, 0, -1) if not LINES[i].strip())
    )
    end = next(i for i in range(at, len(LINES)) if LINES[i] == "}")
    return begin + 1, end + 1


BLAMED = """guard_off_by_one no_guard negative_index misaligned_float4 missing_syncwarp wrong_mask
write_to_const division histogram_without_atomic shared_index_overflow""".split()


def test_bug_marks_and_findings_agree():
    """Where a single line is at fault, the finding names that very line."""
    for name in BLAMED:
        (grid, block, *args), kind, _ = PLANTED[name]
        report = run(
            name, grid, block, *(a.copy() if isinstance(a, np.ndarray) else a for a in args)
        )
        line = next(f.line for f in report.errors if f.kind == kind)
        assert "BUG" in LINES[line - 1], f"{name}: line {line}"


def test_order_of_threads_shows_in_the_result():
    """What tutorial 03 prints: kind, first row that differs, the line that stored it."""
    x = floats(64)
    report = run("missing_barrier", 1, 64, zeros(64), x)
    found = next(f for f in report.errors if f.kind == "result depends on thread order")
    line = next(
        i + 1 for i, text in enumerate(LINES) if "out[threadIdx.x] = s[63 - threadIdx.x]" in text
    )
    assert found.line == line and f"first difference out[0], store line {line}" in found.text
    report = run("wrong_stride", (1, 5), 64, zeros(5, 40), floats(5, 40), 5, 40)
    assert any("first difference row 0, store line 21" in f.text for f in report.errors)


def test_same_value_by_several_threads_is_a_warning():
    report = run("same_value", 1, 64, ints([0]), ints(range(64)))
    assert not report.errors and [f.kind for f in report.warnings] == ["data race"]
    assert "same value" in report.warnings[0].text


def test_remedy_fits_the_threads():
    """Threads of one warp can be ordered by __syncwarp(), others cannot."""
    warp = run("missing_syncwarp", 1, 32, zeros(1), floats(32)).errors[0]
    block = next(
        f
        for f in run("missing_barrier", 1, 64, zeros(64), floats(64)).errors
        if f.kind == "data race"
    )
    assert (
        "__syncwarp()" in warp.remedy
        and "__syncwarp()" not in block.remedy
        and "__syncthreads()" in block.remedy
    )


def test_launch_in_the_check_form_raises_the_report():
    kernel = cuda.kernel(FILE, "guard_off_by_one", form="check")
    out = zeros(128)
    with pytest.raises(cuda.KernelError) as caught:
        kernel(2, 64, (out, floats(100), 100))
    assert re.search(r"planted\.cu:6: out of bounds: .*x\[100\]", str(caught.value))
    assert "/" not in str(caught.value).splitlines()[1]  # file names, no folders
    kernel(2, 50, (out, floats(101), 99))  # no thread reaches the bug
    np.testing.assert_array_equal(out[:99], 2 * floats(101)[:99])


def test_findings_carry_threads_and_blocks():
    found = run("double_write", 3, 32, zeros(80), floats(80), 80).errors[0]
    assert found.block == (1, 0, 0) and found.threads == ((0, 0, 0), (31, 0, 0))


def test_places_given_out_by_an_atomic_are_a_warning_that_says_so():
    """Atomic compaction: the result depends on the order by design."""
    report = run("order_matters", 2, 64, ints([0] * 128), ints([0]), 100)
    assert not report.errors, str(report)
    (found,) = report.warnings
    assert found.kind == "result depends on thread order" and found.line == 201
    assert "the elements are the same, in another order" in found.text

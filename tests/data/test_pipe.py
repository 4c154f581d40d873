"""minidl/data/pipe.py: every record once on unequal pipes, and no end that is none."""

import gzip
import io
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from minidl.comm import objects, simulate
from minidl.data import Pipe
from tests.conftest import ranks

SIZES = [1, 2, 3, 4, 5, 8]


def numbers(lines):
    return np.array([int(line) for line in lines], np.int64)


def body(t, source, batch, options):
    steps = [(records.tolist(), total) for records, total in
             Pipe(source, t, batch, numbers, **options)]
    return steps


@ranks(*SIZES)
def test_unequal_pipes_give_every_record_once(t):
    """Rank r has 5 r numbers, so rank 0 has none."""
    size, command = t.size, "seq $((100 * RANK + 1)) $((100 * RANK + 5 * RANK))"
    found = objects.all_gather(t, body(t, command, 3, {}))
    assert len({len(steps) for steps in found}) == 1
    assert len(found[0]) == -(-5 * (size - 1) // 3)
    seen = [x for steps in found for records, _ in steps for x in records]
    assert sorted(seen) == [100 * r + k for r in range(size) for k in range(1, 5 * r + 1)]
    for step in zip(*found, strict=True):
        assert {total for _, total in step} == {sum(len(records) for records, _ in step)}


@ranks(*SIZES)
def test_records_of_rank_0_are_dealt_in_turn(t):
    found = objects.all_gather(t, body(t, "[ $RANK = 0 ] && seq 0 28", 3, {"deal": True}))
    in_turn = [x for step in zip(*found, strict=True) for records, _ in step for x in records]
    assert in_turn == list(range(29))
    n = 3 * t.size
    assert [total for _, total in found[-1]] == [n] * (29 // n) + ([29 % n] if 29 % n else [])


def test_one_rank_reads_an_open_file_without_dealing():
    assert simulate(1, body, io.BytesIO(b"7\n8\n9"), 2, {}) == [[([7, 8], 2), ([9], 1)]]


@pytest.mark.parametrize("text", [True, False])
def test_an_open_file_is_dealt(text):
    raw = io.BytesIO(b"7\n8\n9")
    source = io.TextIOWrapper(raw) if text else raw
    ranks = simulate(2, body, source, 1, {"deal": True})
    assert ranks == [[([7], 2), ([9], 1)], [([8], 2), ([], 1)]]


def test_a_fifo_is_dealt(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_text("".join(f"{i}\n" for i in range(9))))
    writer.start()
    with open(fifo, "rb") as source:
        ranks = simulate(2, body, source, 2, {"deal": True})
    writer.join()
    assert ranks == [[([0, 1], 4), ([4, 5], 4), ([8], 1)], [([2, 3], 4), ([6, 7], 4), ([], 1)]]


@pytest.mark.parametrize("deal", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_truncated_gzip_is_an_error_on_all_ranks(tmp_path, size, deal):
    """Of rank 0 alone; the others' pipes end well. awk, the last program, ends well, too."""
    whole = gzip.compress("".join(f"{i}\n" for i in range(20_000)).encode())
    for r in range(3):
        (tmp_path / f"{r}.gz").write_bytes(whole[:len(whole) // 2] if r == 0 else whole)
    caught = [None] * size

    def read(t):
        try:
            body(t, f"zcat {tmp_path}/$RANK.gz | awk '{{ print $1 }}'", 512, {"deal": deal})
        except RuntimeError as error:
            caught[t.rank] = str(error)

    simulate(size, read)
    for r, message in enumerate(caught):
        assert message.startswith(f"rank {r}: on 1 of {size} ranks a program failed. Rank 0")
        assert "ended with status 1" in message and "unexpected end of file" in message


def test_a_reader_that_leaves_early_is_no_fault():
    assert simulate(1, body, "yes 4 | head -5", 2, {}) == [[([4, 4], 2), ([4, 4], 2), ([4], 1)]]


def test_leaving_the_loop_ends_the_programs(tmp_path):
    """Both programs of the pipeline, although they ignore a closed pipe."""
    command = (f"(trap '' PIPE; echo $BASHPID > {tmp_path}/pid; while true; do echo 1; sleep .01; "
               "done) | cat")

    def read(t):
        for records, _ in Pipe(command, t, 2, numbers):
            return records.tolist()

    start = time.monotonic()
    assert simulate(1, read) == [[1, 1]]
    pid = int((tmp_path / "pid").read_text())
    while _alive(pid):
        assert time.monotonic() - start < 20
        time.sleep(0.01)


def _alive(pid):
    """Whether it runs; one that has ended and that nobody has waited for yet does not."""
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_the_last_three_lines_of_a_program_that_failed_are_told():
    with pytest.raises(RuntimeError, match="record: line 3 / line 4 / line 5. Its records may be"):
        simulate(1, body, "for k in 1 2 3 4 5; do echo line $k >&2; done; exit 1", 1, {})


def test_a_fault_in_parse_is_raised_and_a_killed_program_is_named():
    with pytest.raises(RuntimeError, match="invalid literal"):
        simulate(1, body, "echo one", 1, {})
    with pytest.raises(RuntimeError, match="was ended by SIGKILL.*may be incomplete"):
        simulate(1, body, "echo 1; kill -9 $$", 1, {})
    with pytest.raises(RuntimeError, match="rank 0: got an open file, but only one rank can"):
        simulate(2, body, io.BytesIO(b""), 1, {})
    with pytest.raises(RuntimeError, match="batch must be at least 1, got 0"):
        simulate(1, body, "true", 0, {})

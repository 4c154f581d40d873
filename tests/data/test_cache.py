"""minidl/data/cache.py: made once, read by all, never a torn record."""

import numpy as np
import pytest

from minidl.data import Pipeline, cache


def pipeline(folder, made, n=12, rank=0, size=1):
    def slow(i):
        made.append(i)
        return np.full(3, i), {"name": f"sample {i}"}

    return Pipeline(range(n)).map(slow).cache(folder).shard(rank, size)


def test_ranks_and_later_runs_read_what_others_made(tmp_path):
    made = []
    first = [list(pipeline(tmp_path, made, rank=r, size=3)) for r in range(3)]
    assert sorted(made) == list(range(12))
    again = list(pipeline(tmp_path, made))
    assert len(made) == 12 and [x[0] for x, _ in again] == list(range(12))
    assert [about["name"] for _, about in first[1]] == [f"sample {i}" for i in range(1, 12, 3)]


def test_a_killed_writer_leaves_whole_records(tmp_path):
    made = []
    list(pipeline(tmp_path, made))
    (data,), (index,) = tmp_path.glob("*.data"), tmp_path.glob("*.index")
    with open(index, "r+b") as f:
        f.truncate(32 * 9 + 5)  # the tenth entry is torn
    data.rename(tmp_path / "other-1.data")
    index.rename(tmp_path / "other-1.index")
    made.clear()
    again = list(pipeline(tmp_path, made))
    assert made == [9, 10, 11] and [x[0] for x, _ in again] == list(range(12))


def test_damage_and_another_pipeline_are_errors(tmp_path):
    list(pipeline(tmp_path, []))
    with pytest.raises(ValueError, match="of a pipeline of 12 elements; this one has 13"):
        list(pipeline(tmp_path, [], n=13))
    (data,) = tmp_path.glob("*.data")
    raw = bytearray(data.read_bytes())
    raw[20] ^= 1
    data.write_bytes(raw)
    with pytest.raises(ValueError, match="element 0 in .* is damaged"):
        list(pipeline(tmp_path, []))
    assert 3 not in cache.Folder(tmp_path / "new")

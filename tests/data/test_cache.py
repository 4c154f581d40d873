"""minidl/data/cache.py: made once, read by all, never a torn record."""

import os

import numpy as np
import pytest

from minidl.data import Pipeline, cache
from tests.damaged import N, at_most, damaged


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


def test_another_pipeline_and_a_damaged_description_are_errors(tmp_path):
    list(pipeline(tmp_path, []))
    with pytest.raises(ValueError, match="to a pipeline of 12 elements, but this pipeline has 13"):
        list(pipeline(tmp_path, [], n=13))
    for text in ("", "[]", "{}", "[" * 100000, "\xff"):
        (tmp_path / "pipeline.json").write_text(text, "latin-1")
        with pytest.raises(ValueError, match="pipeline.json is damaged .* Remove the folder"):
            list(pipeline(tmp_path, []))


def values(elements):
    return [(x.tolist(), about["name"]) for x, about in elements]


WANTED = [([i] * 3, f"sample {i}") for i in range(12)]


def test_a_damaged_element_is_made_again_and_kept(tmp_path):
    list(pipeline(tmp_path, []))
    (data,) = tmp_path.glob("*.data")
    raw = bytearray(data.read_bytes())
    raw[20] ^= 1
    data.write_bytes(raw)
    made = []
    elements = pipeline(tmp_path, made)
    for _ in range(2):
        assert values(elements) == WANTED
    assert made == [0]


def test_an_entry_of_another_number_is_not_taken_for_it(tmp_path):
    list(pipeline(tmp_path, []))
    (index,) = tmp_path.glob("*.index")
    entries = np.fromfile(index, "<i8").reshape(-1, 4)
    entries[:, 0] = entries[::-1, 0]
    entries.tofile(index)
    made = []
    assert values(pipeline(tmp_path, made)) == WANTED and len(made) == 12


@pytest.mark.parametrize("kind", ["data", "index"])
def test_damaged_files_are_read_right_or_made_again(tmp_path, kind):
    list(pipeline(tmp_path, []))
    (file,) = tmp_path.glob(f"*.{kind}")
    good = {path: path.read_bytes() for path in tmp_path.iterdir()}
    n_made = 0
    for raw in damaged(good[file]):
        for path in set(tmp_path.iterdir()) - good.keys():
            path.unlink()
        for path, content in good.items():
            path.write_bytes(content)
        file.write_bytes(raw)
        made = []
        with at_most(8 << 20):
            assert values(pipeline(tmp_path, made)) == WANTED
        n_made += len(made)
    assert N / 2 < n_made < 12 * N


class Bomb:
    """A pickle that runs code."""

    def __reduce__(self):
        return pytest.fail, ("a pickle of another user was read",)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without owners of files")
def test_what_another_user_can_write_is_not_read(tmp_path, monkeypatch):
    folder = cache.Folder(tmp_path)
    folder.begin(12)
    for i in range(12):
        folder[i] = (Bomb(),)
    files = [*tmp_path.glob("*.data"), *tmp_path.glob("*.index")]
    for file in files:
        for mode in (0o620, 0o602):
            file.chmod(mode)
            made = []
            assert values(pipeline(tmp_path / ".", made)) == WANTED and len(made) == 12
            for new in {*tmp_path.glob("*.data"), *tmp_path.glob("*.index")} - {*files}:
                new.unlink()
            file.chmod(0o600)


def test_a_full_disk_is_one_warning(tmp_path, monkeypatch):
    made, openings = [], []

    def full(path, *args, **options):
        openings.append(path)
        raise OSError(28, "No space left on device")

    elements = pipeline(tmp_path, made)
    monkeypatch.setattr(cache.os, "open", full)
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(No space left") as caught:
        for _ in range(2):
            assert values(elements) == WANTED
    assert len(caught) == 1 and len(openings) == 1 and len(made) == 24

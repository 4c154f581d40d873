"""minidl/data/text.py: the same bytes each time, and windows that any number of ranks share."""

import itertools
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from minidl.data import text


def make_tree(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"<{name}>".encode())


def test_corpus_joins_sources_in_order_of_their_names(tmp_path):
    wanted = ["Zed.py", "a/__init__.py", "a/b.py", "b.py", "c/deep/x.py"]
    skipped = ["a/data.txt", "test/t.py", "a/tests/t.py", "idlelib/idle_test/t.py"]
    skipped += ["site-packages/p.py", "dist-packages/p.py", "__pycache__/b.py"]
    make_tree(tmp_path, [*reversed(wanted), *skipped])
    (tmp_path / "broken.py").symlink_to(tmp_path / "missing")  # unreadable
    corpus = text.stdlib_corpus(root=tmp_path)
    assert corpus.dtype == np.uint8
    assert corpus.tobytes().decode() == "".join(f"<{name}>" for name in wanted)


def test_corpus_of_n_bytes_is_the_start_of_the_whole(tmp_path):
    make_tree(tmp_path, [f"m{i}.py" for i in range(9)])
    whole = text.stdlib_corpus(root=tmp_path)
    for n in (1, 7, 8, len(whole) - 1, len(whole), len(whole) + 1):
        np.testing.assert_array_equal(text.stdlib_corpus(n, root=tmp_path), whole[:n])


def test_corpus_of_the_real_library_is_source_text():
    corpus = text.stdlib_corpus(2_000_000)
    assert len(corpus) == 2_000_000
    np.testing.assert_array_equal(corpus, text.stdlib_corpus(2_000_000))
    source = (Path(sysconfig.get_path("stdlib")) / "abc.py").read_bytes()
    assert source in corpus.tobytes()


def test_a_folder_without_sources_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no readable .py file"):
        text.stdlib_corpus(root=tmp_path)


def test_split_holds_out_the_end():
    data = np.arange(25, dtype=np.uint8)
    train, validation = text.split(data, 0.2)
    np.testing.assert_array_equal(np.concatenate([train, validation]), data)
    assert len(validation) == 5


@pytest.mark.parametrize("n, length", [(11, 5), (12, 5), (15, 5), (16, 5), (2, 1), (100, 7)])
def test_windows_predict_every_byte_once(n, length):
    data = np.arange(n, dtype=np.uint8)
    windows = text.Windows(data, length)
    samples = [windows[i] for i in range(len(windows))]
    for x, y in samples:
        assert x.shape == y.shape == (length,)
        np.testing.assert_array_equal(x + 1, y)  # data[i] is i: the target is the next byte
    targets = np.concatenate([y for _, y in samples])
    np.testing.assert_array_equal(targets, np.arange(1, len(targets) + 1))
    assert n - 1 - len(targets) < length  # no window more would have fitted
    with pytest.raises(IndexError):
        windows[len(windows)]


def take(n, *args, **kwargs):
    return list(itertools.islice(text.random_batches(*args, **kwargs), n))


def test_random_batches_predict_the_next_byte_over_the_whole_range():
    data = np.arange(20, dtype=np.uint8)
    batches = take(50, data, batch_size=4, length=6, seed=3)
    for x, y in batches:
        assert x.shape == y.shape == (4, 6) and x.dtype == y.dtype == np.int64
        np.testing.assert_array_equal(x + 1, y)
        np.testing.assert_array_equal(np.diff(x), 1)
    starts = {int(s) for x, _ in batches for s in x[:, 0]}
    assert starts == set(range(14))  # every place there is: 13 + 6 = 19 is the last byte


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_ranks_together_see_the_batch_of_one_rank(size):
    data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)
    whole = take(3, data, batch_size=12, length=9, seed=5)
    parts = [take(3, data, 12 // size, 9, rank=r, size=size, seed=5) for r in range(size)]
    for step, (x, y) in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([p[step][0] for p in parts]), x)
        np.testing.assert_array_equal(np.concatenate([p[step][1] for p in parts]), y)


def test_random_batches_resume_at_a_step_and_follow_the_seed():
    data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)
    whole, rest = take(5, data, 2, 8, seed=1), take(2, data, 2, 8, seed=1, first_step=3)
    np.testing.assert_array_equal(rest, whole[3:])
    assert not np.array_equal(whole[0][0], whole[1][0])
    assert not np.array_equal(whole, take(5, data, 2, 8, seed=2))


def test_too_little_data_is_an_error_at_once():
    data = np.zeros(8, np.uint8)
    for make in (text.Windows, lambda d, length: text.random_batches(d, 1, length)):
        make(data, 7)
        with pytest.raises(ValueError, match="windows of 8 bytes need a text of 9 .*got 8 bytes"):
            make(data, 8)


@pytest.mark.parametrize("n", [1, 2, 5, 10, 13])
def test_windows_are_spread_from_the_first_to_the_last(n):
    """Ten windows of 3: byte b is the number of its place."""
    x, y = text.spread(np.arange(31, dtype=np.uint8), 3, n)
    assert x.shape == y.shape == (n, 3) and (y == x + 1).all() and (np.diff(x) == 1).all()
    assert (x[:, 0] % 3 == 0).all() and x[0, 0] == 0 and (n == 1 or x[-1, 0] == 27)
    assert set(np.diff(x[:, 0])) <= {9 // (n - 1) * 3, -(-9 // (n - 1)) * 3} if n > 1 else True

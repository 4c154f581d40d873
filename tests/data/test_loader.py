"""minidl/data/loader.py: the same batches with and without the thread, and no thread is left."""

import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest

import minidl
from minidl.data import ArrayDataset, DataLoader, DistributedSampler
from minidl.random import default_generator, manual_seed

PREFETCH = [0, 1, 2, 5]
# An upper bound for waiting on a thread that is about to end; no test passes by waiting it out.
PATIENCE_S = 20


def numbers(n):
    return ArrayDataset(np.arange(n), np.arange(n, dtype=np.float32).reshape(n, 1) * 10)


def loading_threads():
    return {t for t in threading.enumerate() if t.name == "minidl-loader"}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = loading_threads()  # an iterator that another file's test has dropped may still end
    yield
    for thread in loading_threads() - before:
        thread.join(PATIENCE_S)
    assert loading_threads() <= before


@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_keep_the_order(n, drop_last, prefetch):
    loader = DataLoader(numbers(n), 4, drop_last=drop_last, prefetch=prefetch)
    for _ in range(2):  # a loader can be iterated again
        batches = list(loader)
        assert len(batches) == len(loader)
        n_seen = n // 4 * 4 if drop_last else n
        assert [len(x) for x, _ in batches] == [min(4, n_seen - i) for i in range(0, n_seen, 4)]
        for k, (x, y) in enumerate(batches):
            np.testing.assert_array_equal(x, np.arange(4 * k, 4 * k + len(x)))
            np.testing.assert_array_equal(y, x[:, None] * 10)


def test_the_sampler_chooses_and_collate_combines():
    loader = DataLoader(list("abcdef"), 2, sampler=[5, 0, 2], collate_fn="".join)
    assert list(loader) == ["fa", "c"]


def test_a_batch_of_arrays_or_tensors_is_one_tensor():
    for samples in ([np.ones(3), np.zeros(3)], [minidl.ones(3), minidl.zeros(3)]):
        (batch,) = DataLoader(samples, 2)
        assert isinstance(batch, minidl.Tensor) and batch.shape == (2, 3)
        assert batch.dtype == samples[0].dtype and batch.is_leaf and not batch.requires_grad


def test_samples_of_different_shapes_are_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"the samples have shapes \[\(2,\), \(3,\)\]"):
        list(DataLoader([np.ones(3), np.ones(2)], 2))


class Faulty:
    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == 5:
            raise LookupError("sample 5 is on a bad sector")
        return i


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_a_fault_in_the_dataset_reaches_the_consumer(prefetch):
    seen = []
    with pytest.raises(LookupError, match="bad sector") as caught:
        for x in DataLoader(Faulty(), 2, prefetch=prefetch):
            seen += x.tolist()
    assert seen == [0, 1, 2, 3]  # all batches before the faulty one are delivered
    lines = "".join(traceback.format_exception(caught.value))
    assert 'raise LookupError("sample 5 is on a bad sector")' in lines  # the dataset's own line
    assert "while loading samples [4, 5]" in lines


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_breaking_early_ends_the_thread(prefetch):
    for (x, _) in DataLoader(numbers(1000), 2, prefetch=prefetch):
        assert x[0] == 0
        break
    iterator = iter(DataLoader(numbers(1000), 2, prefetch=prefetch))
    next(iterator)
    iterator.close()
    iter(DataLoader(numbers(1000), 2, prefetch=prefetch))  # never asked for a batch


def test_at_most_prefetch_batches_are_loaded_ahead():
    loaded, third = [], threading.Event()

    class Counted:
        def __len__(self):
            return 100

        def __getitem__(self, i):
            loaded.append(i)
            if i == 2:
                third.set()
            return i

    iterator = iter(DataLoader(Counted(), 1, prefetch=2))
    next(iterator)
    # The consumer holds batch 0 and does nothing: batches 1 and 2 are loaded meanwhile ...
    assert third.wait(PATIENCE_S)
    # ... and no more. The thread would have to load a hundred in this time to hide a missing limit.
    next(iter(loading_threads())).join(0.2)
    assert loaded == [0, 1, 2]
    iterator.close()


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_only_delivered_batches_count_as_consumed(prefetch):
    sampler = DistributedSampler(20, 1, 2, shuffle=False)
    loader = DataLoader(range(20), 3, sampler, prefetch=prefetch)
    iterator = iter(loader)
    assert sampler.state_dict()["consumed"] == 0
    for wanted in (6, 12, 18, 20):  # 3 + 3 + 3 + 1 samples on each of two ranks
        next(iterator)
        assert sampler.state_dict()["consumed"] == wanted


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_resumed_loading_delivers_what_was_left(prefetch):
    def loader(rank):
        sampler = DistributedSampler(37, rank, 2, tail="uneven", seed=9)
        sampler.set_epoch(3)
        return DataLoader(range(37), 4, sampler, prefetch=prefetch)

    whole = [np.concatenate([x.array for x in loader(rank)]) for rank in range(2)]
    saved = loader(0)
    for k, _ in enumerate(saved):
        if k == 1:
            break
    resumed = [loader(rank) for rank in range(2)]
    for rank in range(2):
        resumed[rank].sampler.load_state_dict(saved.sampler.state_dict())
        rest = np.concatenate([x.array for x in resumed[rank]])
        np.testing.assert_array_equal(rest, whole[rank][8:])


def test_a_program_that_still_holds_an_iterator_can_end():
    code = (
        "from minidl.data import DataLoader\n"
        "iterator = iter(DataLoader(range(10**9), 2))\n"
        "print(next(iterator))\n"
        "keep = [iterator]; keep.append(keep)\n"  # a cycle: not collected before exit
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "tensor([0, 1])\n", "")


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        DataLoader(range(3), 0)
    with pytest.raises(ValueError, match="prefetch: want n >= 0.*got n=-1"):
        DataLoader(range(3), 1, prefetch=-1)


class Noisy:
    """Sample i is i and a number drawn from the default generator."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return np.float32(i), default_generator().uniform((1,))


def drawn(prefetch, batch_size=3, seed=5, epochs=2, rank=0, size=1):
    """{(epoch, sample): its number}."""
    manual_seed(seed, stream=rank)
    sampler = DistributedSampler(10, rank, size, seed=1)
    found = {}
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for i, u in DataLoader(Noisy(), batch_size, sampler, prefetch=prefetch):
            found |= {(epoch, int(k)): float(v) for k, v in zip(i, u[:, 0], strict=True)}
    return found


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_what_a_dataset_draws_follows_the_seed_the_epoch_and_the_sample_alone(prefetch):
    whole = drawn(prefetch)
    assert len(set(whole.values())) == 20  # no sample and no epoch repeats another
    assert drawn(0, batch_size=7) == whole
    assert drawn(prefetch, seed=6).values() != whole.values()
    halves = drawn(prefetch, rank=0, size=2) | drawn(prefetch, rank=1, size=2)
    assert halves == whole


def test_passes_over_a_loader_without_epochs_draw_other_numbers():
    manual_seed(0)
    loader = DataLoader(Noisy(), 10)
    (a,), (b,) = list(loader), list(loader)
    assert not np.intersect1d(a[1], b[1]).size

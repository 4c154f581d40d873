"""minidl/data/datasets.py: real images, in the shapes and ranges promised."""

import subprocess
import sys

import numpy as np
import pytest

import minidl
from minidl.data import ArrayDataset, DataLoader, TensorDataset, datasets, idx


def test_tensors_side_by_side_are_batches_of_pytorchs_numbers():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    from torch.utils import data as theirs
    x, y = np.arange(10, dtype="f4").reshape(5, 2), np.arange(5)
    wanted = theirs.TensorDataset(torch.tensor(x), torch.tensor(y))
    for given in ((minidl.tensor(x, requires_grad=True), minidl.tensor(y)), wanted.tensors):
        mine = TensorDataset(*given)
        assert len(mine) == len(wanted) == 5
        for got, want in zip(DataLoader(mine, 2), theirs.DataLoader(wanted, 2), strict=True):
            for a, b in zip(got, want, strict=True):
                assert isinstance(a, minidl.Tensor)
                np.testing.assert_array_equal(a.array, b.numpy(), strict=True)
    here = TensorDataset(w := minidl.zeros(3))
    w.fill_(2)  # the memory is shared
    assert here.tensors[0].tolist() == [2, 2, 2] and here[1][0].item() == 2
    with pytest.raises(ValueError, match=r"TensorDataset needs arrays of equal length, got.*5, 3"):
        TensorDataset(minidl.zeros(5), minidl.zeros(3))


def test_digits_are_split_once_and_completely():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    train, test = datasets.digits()
    assert (len(train), len(test)) == (1437, 360)
    for part in (train, test):
        images, labels = part[:]
        assert images.shape[1:] == (1, 8, 8) and images.dtype == np.float32
        assert labels.shape == (len(part),) and labels.dtype == np.int64
        assert images.min() == 0 and images.max() == 1
        # each digit is in both parts about equally often
        assert np.bincount(labels).min() > 0.7 * len(part) / 10

    # together they are all of the original samples, pixels still beside their label
    def rows(images, labels):
        table = np.column_stack([labels, np.reshape(images, (len(labels), 64))])
        return table[np.lexsort(table.T)]

    pixels, labels = load_digits(return_X_y=True)
    both = [np.concatenate(pair) for pair in zip(train[:], test[:], strict=True)]
    np.testing.assert_array_equal(rows(both[0] * 16, both[1]), rows(pixels, labels))


def test_digits_are_the_same_in_another_process():
    pytest.importorskip("sklearn")
    code = "from minidl.data import datasets; print(datasets.digits()[1][:][1][:40].tolist())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(datasets.digits()[1][:][1][:40].tolist())


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # None there: find_spec finds nothing
    with pytest.raises(ImportError, match=r"pip install 'minidl\[tutorials\]'"):
        datasets.digits()


def write_folder(folder, suffix=".gz", n_train=6, n_test=3):
    rng = np.random.default_rng(1)
    parts = {}
    for part, n in (("train", n_train), ("t10k", n_test)):
        images = rng.integers(0, 256, (n, 4, 5), dtype=np.uint8)
        images.flat[0], images.flat[-1] = 0, 255
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        idx.write(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        idx.write(folder / f"{part}-labels-idx1-ubyte{suffix}", labels)
        parts[part] = images, labels
    return parts


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_folder_gives_images_between_0_and_1(tmp_path, suffix):
    parts = write_folder(tmp_path, suffix)
    train, test = datasets.idx_folder(tmp_path)
    for dataset, part in ((train, "train"), (test, "t10k")):
        (x, y), (images, labels) = dataset[:], parts[part]
        assert x.dtype == np.float32 and y.dtype == np.int64
        np.testing.assert_array_equal(x, images[:, None] / np.float32(255))
        np.testing.assert_array_equal(y, labels)


def test_a_folder_without_the_files_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither train-images-idx3-ubyte nor .*gz"):
        datasets.idx_folder(tmp_path)


def test_images_and_labels_must_be_equally_many(tmp_path):
    write_folder(tmp_path)
    idx.write(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(5, np.uint8))
    with pytest.raises(ValueError, match=r"train needs .* got \(6, 4, 5\) of uint8 and \(5,\)"):
        datasets.idx_folder(tmp_path)
    with pytest.raises(ValueError, match=r"got lengths \[2, 3\]"):
        ArrayDataset([1, 2], [1, 2, 3])

"""Real images that need no download.

    digits()          1,797 handwritten digits of 8 x 8 pixels; scikit-learn contains them
    idx_folder(path)  any four files in MNIST's format: MNIST itself, or Fashion-MNIST, which
                      Debian's package dataset-fashion-mnist puts in /usr/share/datasets

Each function returns (train, test), two ArrayDatasets. The pixels of an image are numbers from 0
to 1. All images are an array (N, 1, H, W), float32, and all labels are an array (N,), int64.
`images, labels = train[:]` gives these arrays.
Test: tests/data/test_datasets.py   Tutorial: tutorials/07_ring.py
Source: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI repository 1998.
"""

import importlib.util
from pathlib import Path

import numpy as np

from minidl.backend import plain_array
from minidl.data import idx
from minidl.data.dataset import Dataset
from minidl.random import Generator
from minidl.tensor import Tensor


class ArrayDataset(Dataset):
    """Arrays of equal length. Sample i is (arrays[0][i], arrays[1][i], ...)."""

    def __init__(self, *arrays):
        lengths = [len(a) for a in arrays]
        if len(set(lengths)) != 1:
            raise ValueError(f"{type(self).__name__} needs arrays of equal length, got lengths "
                             f"{lengths}")
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, i):
        """Returns a tuple with element i of each array. `i` is an int for one sample, or a slice or
        an array of integers for several samples."""
        return tuple(a[i] for a in self.arrays)


class TensorDataset(ArrayDataset):
    """Tensors of equal length. Sample i is (tensors[0][i], tensors[1][i], ...). Reading one sample
    copies no data. Takes minidl's tensors, PyTorch's tensors, and arrays."""

    def __init__(self, *tensors):
        super().__init__(*map(plain_array, tensors))
        self.tensors = tuple(map(Tensor, self.arrays))

    def __getitem__(self, i):
        return tuple(tensor[i] for tensor in self.tensors)


def digits():
    """Returns (train, test), with 1,437 and 360 images of 8 x 8 pixels. The images are the same on
    every rank and machine. Both parts have digits from each writer. So the accuracy on `test` does
    not tell how well a model reads the digits of a new writer. Raises ImportError without
    scikit-learn."""
    sklearn = importlib.util.find_spec("sklearn")  # find_spec is faster than an import
    if sklearn is None:
        raise ImportError("the digits come with scikit-learn, which is not installed. "
                          "Install it with: pip install 'minidl[tutorials]'")
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int64)  # pixels 0-16, labels 0-9
    images = images.astype(np.float32).reshape(-1, 1, 8, 8)  # exact, because 1/16 is a power of 2
    order = Generator(0).permutation(len(images))
    test, train = order[:360], order[360:]  # a fifth of the images is for the test
    return ArrayDataset(images[train], labels[train]), ArrayDataset(images[test], labels[test])


def idx_folder(path):
    """Returns (train, test) from a folder with the four files of a data set in MNIST's format. The
    files may be gzipped, with names that end in .gz. Raises FileNotFoundError if a file is missing,
    and ValueError if the shape or the dtype of an array is wrong."""
    return _idx_pair(path, "train"), _idx_pair(path, "t10k")


def _idx_pair(path, part):
    images = _read_either(path, f"{part}-images-idx3-ubyte")
    labels = _read_either(path, f"{part}-labels-idx1-ubyte")
    if images.dtype != np.uint8 or images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(f"{path}: {part} needs uint8 images of shape (N, H, W) and "
                         f"labels of shape (N,); got {images.shape} of {images.dtype} and "
                         f"{labels.shape}")
    images = images[:, None].astype(np.float32)  # (N, 1, H, W)
    images /= 255  # in place, because a temporary array of 60,000 images takes 188 MB
    return ArrayDataset(images, labels.astype(np.int64))


def _read_either(path, name):
    for file in (Path(path, name), Path(path, name + ".gz")):
        if file.exists():
            return idx.read(file)
    raise FileNotFoundError(f"{path}: has neither {name} nor {name}.gz")

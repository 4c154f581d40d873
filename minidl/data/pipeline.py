"""A pipeline: what a rank eats, said as functions of an index.

The plain form of its stages: minidl/plain/input.py; of shard(): minidl/plain/shuffle.py. Here: the
stages as methods, any of them or none, each a pure function of an index; so a place can be saved.

    from minidl.data import Pipeline, lengths

    batches = (Pipeline(files)                   anything with len() and [i]
               .interleave(records, cycle=4)     each file's records, four files at a time
               .shuffle(seed=0)                  another order every epoch
               .map(decode)                      in the workers
               .cache("/scratch/decoded")        once for all ranks and epochs
               .shard(t.rank, t.size)
               .batch(32)
               .prefetch(4, workers="auto"))     threads in order (prefetch.py)
    for batch in batches: ...                    one epoch; then the next (next() of all: passes.py)

Every stage turns a sequence into a sequence (stages.py): a length, and get(i), a pure function of
i. So workers may load the elements in any order, random augmentations follow (seed, epoch, element)
alone, and the state is a few integers: the epoch, and how many elements each rank has used.
`load_state_dict` goes on exactly there, also on another number of ranks (partition.py).

filter() leaves gaps, and a batch after it is filled from whatever remains: then ranks use unequal
numbers of elements and have unequal numbers of batches (parallel.data.join trains on those).

A stream, something without [i] such as an IterableDataset, takes map, filter, batch and prefetch.
Its place is its own: its method `used(item)`, if it has one, is told each item whose batch has been
handed over (those loaded ahead do not count), and its state_dict() is part of this one's.

Sources: grain (Google), tf.data (Murray et al. 2021, arXiv 2101.12127).
Test: tests/data/test_pipeline.py   Tutorial: tutorials/26_input.py
"""

import copy
import sys
from collections.abc import Iterator
from typing import Any

from minidl.data import cache, partition, stages
from minidl.data.collate import default_collate
from minidl.data.dataset import IterableDataset
from minidl.data.prefetch import prefetch
from minidl.data.upload import Upload
from minidl.random import default_generator, using


class Pipeline:
    """See above. Each method gives a new pipeline; this one stays as it is."""

    def __init__(self, source):
        self.source, self._stages, self._late = source, [], []
        self.is_stream = isinstance(source, IterableDataset) or not hasattr(source, "__getitem__")
        self._filtered = self._shuffled = self._shard = self._batch = None
        self._prefetch, self._workers, self._say, self.device = 0, 1, None, None
        self.epoch, self._position, self._resume = 0, [], None
        self.found = None  # what workers="auto" has said

    # -- stages

    def map(self, fn):
        """fn(element). It may draw from the default generator: a stream for each element."""
        return self._element_stage(stages.mapped, fn)

    def filter(self, keep):
        """The elements for which keep(element) is true."""
        new = self._element_stage(stages.filtered, keep)
        new._filtered = True
        return new

    def shuffle(self, seed=0):
        """Another order in every epoch, over all elements. Before shard()."""
        self._only_before("shuffle", shard=self._shard, batch=self._batch)
        new = self._stage(stages.shuffled, seed)
        new._shuffled = True
        return new

    def interleave(self, fn=None, cycle=4, block=1):
        """The elements of the parts fn(element), each with len() and [i]: `block` elements of each
        of `cycle` parts in turn; a part that is used up is replaced by the next."""
        self._only_before("interleave", shard=self._shard, batch=self._batch)
        return self._stage(stages.interleaved, fn or (lambda part: part), cycle, block)

    def cache(self, folder=None):
        """Keep what the stages before have made, in memory or in a folder that all ranks read."""
        self._only_before("cache", shuffle=self._shuffled, shard=self._shard, batch=self._batch)
        return self._stage(stages.cached, cache.Folder(folder) if folder else {})

    def shard(self, rank, size, tail=None, groups=None):
        """Every size-th element, from `rank` on. tail: partition.py; "pad", or "split" of group().
        groups: a seed; rounds of `size` neighbours are dealt in random order."""
        self._only_before("shard", shard=self._shard, batch=self._batch)
        partition.check(rank, size, tail or "pad")
        new = self._stage(stages.sharded, rank, size, tail, groups)
        new._shard = rank, size
        return new

    def group(self, lists, collate=default_collate):
        """Batches of chosen elements. lists(epoch): for each batch the list of its elements' places
        (lengths.pools, lengths.packs). Before shard()."""
        self._only_before("group", shard=self._shard, batch=self._batch)
        return self._stage(stages.grouped, lists, collate)

    def batch(self, batch_size, drop_last=False, collate=default_collate):
        """batch_size elements as one: tuples of arrays (batch_size, ...), or what collate makes."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self._only_before("batch", batch=self._batch)
        new = self if self._shard or self.is_stream else self.shard(0, 1)
        if new._filtered or new.is_stream:
            new = copy.copy(new)
        else:
            new = new._stage(stages.batched, batch_size, drop_last, collate)
        new._batch = batch_size, drop_last, collate
        return new

    def prefetch(self, n=2, workers=1, device=None, say=None):
        """Load up to n batches ahead, in `workers` threads or "auto". device: "cuda" or "cuda:i",
        where their arrays are copied meanwhile (upload.py). say: hears what "auto" has found;
        unless given, rank 0 writes it to stderr. All ranks count as sharing one machine."""
        if n < 0 or workers != "auto" and workers < 1:
            raise ValueError(f"prefetch must be 0 or more, got {n}, and workers 1 or more or "
                             f"'auto', got {workers!r}")
        new = copy.copy(self)
        new._prefetch, new._workers, new._say = n, workers, say
        new.device = None if device == "cpu" else device
        return new

    def _stage(self, fn, *args):
        if self.is_stream:
            raise TypeError(f"{fn.__name__}: {type(self.source).__name__} is a stream, without "
                            "[i]; it takes map, filter, batch and prefetch")
        new = copy.copy(self)
        new._stages = [*self._stages, (fn, args)]
        return new

    def _element_stage(self, fn, argument):
        late = self.is_stream or self._filtered and self._batch
        new = copy.copy(self) if late else self._stage(fn, argument)
        if late:  # also of batches that are filled from what a filter has left
            new._late = [*self._late, (fn, argument, self._batch is not None)]
        return new

    def _only_before(self, name, **others):
        for other, there in others.items():
            if there:
                raise ValueError(f"{name}() comes before {other}() in a pipeline: afterwards its "
                                 "elements are not the same in every epoch and on every number of "
                                 "ranks")

    # -- a pass

    def __len__(self):
        """Of this rank's next epoch."""
        if self.is_stream or self._filtered:
            raise TypeError("a pipeline with filter(), or of a stream, has no len(): nobody knows")
        return self._elements(self._resume or []).n

    def __iter__(self) -> Iterator[Any]:
        # Here, not in a thread: starting a pass changes the state.
        position, self._resume = self._resume or [], None
        upload = None if self.device is None else Upload(self.device)
        return self._pass(*self._start(position), upload)

    def _start(self, position):
        """(tasks, work(task), used(task)) of a pass from `position` on."""
        epoch, seed = self.epoch, default_generator().seed
        if self.is_stream:
            tell, work = getattr(self.source, "used", None), self._late_work(epoch, seed, False)
            return (enumerate(self.source), lambda task: work(*task),
                    lambda task: tell and tell(task[1]))
        elements = self._elements(position)
        size = self._shard[1] if self._shard else 1
        before = stages.before(position, size)

        def used(i):
            self._position = [*before, [size, elements.used(i + 1)]]

        used(-1)
        return range(elements.n), elements.get, used

    def _elements(self, position):
        epoch, seed, source = self.epoch, default_generator().seed, self.source
        all_stages = self._stages + ([] if self._shard else [(stages.sharded, (0, 1, None, None))])

        def get(i):
            with using(stages.stream(seed, epoch, 0, i)):
                return source[i]

        elements = stages.Elements(len(source), get, lambda i: i)
        for depth, (stage, args) in enumerate(all_stages, 1):
            elements = stage(elements, (epoch, seed, depth, position), *args)
        return elements

    def _late_work(self, epoch, seed, batches):
        """The stages of a stream's items, or those of batches: work(number, item)."""
        chosen = [(depth, fn, argument) for depth, (fn, argument, late) in enumerate(self._late, 32)
                  if late == batches]

        def work(number, item):
            one = stages.Elements(1, lambda i: item, lambda i: number)
            for depth, fn, argument in chosen:
                one = fn(one, (epoch, seed, depth, []), argument)
            return one.get(0)

        return work

    def _pass(self, tasks, work, used, upload):
        epoch, gathers = self.epoch, self._batch and (self.is_stream or self._filtered)
        begin = (lambda x: x) if upload is None or gathers else (
            lambda x: x if x is stages.DROPPED else upload.start(x))
        items = self._ahead(tasks, lambda task: begin(work(task)), self._batch[0] if gathers else 1)
        if gathers:
            items = prefetch(self._gathered(items, epoch), lambda task: task[1] if upload is None
                          else upload.start(task[1]), self._prefetch)
            items = ((task[0], batch) for task, batch in items)
        else:
            items = (((task,), item) for task, item in items)
        for some, item in items:
            for task in some:
                used(task)
            if item is not stages.DROPPED:
                yield item if upload is None else upload.finish(item)
        self.epoch, self._position = epoch + 1, []

    def _ahead(self, tasks, work, per_batch):
        rank, size = self._shard or (0, 1)

        def say(line):
            self.found = line
            if self._say is not None:
                self._say(line)
            elif rank == 0:
                sys.stderr.write(f"rank {rank}: data: {line}\n")

        return prefetch(tasks, work, self._prefetch * per_batch, self._workers, say, ranks=size)

    def _gathered(self, items, epoch):
        """((tasks, batch),) of the elements that a filter has left, or a stream gives."""
        batch_size, drop_last, collate = self._batch
        work = self._late_work(epoch, default_generator().seed, batches=True)
        tasks, kept = [], []

        def batch():
            number = tasks[0][0] if self.is_stream else tasks[0]
            return tasks, work(number, collate(kept))

        for task, item in items:
            tasks.append(task)
            if item is not stages.DROPPED:
                kept.append(item)
            if len(kept) == batch_size:
                yield batch()
                tasks, kept = [], []
        if kept and not drop_last:
            yield batch()
        elif tasks:
            yield tasks, stages.DROPPED

    # -- its place

    def state_dict(self, gather=None):
        """A few integers. Save any rank's; after filter() on several ranks each is at a place of
        its own: pass gather=partial(objects.all_gather, t), which makes the call a collective."""
        if self.is_stream:
            return {"epoch": self.epoch, "source": self.source.state_dict()}
        position = list(self._position if self._resume is None else self._resume)
        if position and self._filtered and self._resume is None:
            size, used = position[-1]
            if gather is None and size > 1:
                raise ValueError(f"rank {self._shard[0]}: after filter() every rank is at a place "
                                 "of its own. Call state_dict(partial(objects.all_gather, t)) on "
                                 "all ranks")
            position[-1] = [size, *(gather(used) if gather else [used])]
        return {"epoch": self.epoch, "n": len(self.source), "position": position}

    def load_state_dict(self, state):
        """Go on from there, on any number of ranks; the stages must be the same."""
        self.epoch = state["epoch"]
        if self.is_stream:
            self.source.load_state_dict(state["source"])
            return
        if state["n"] != len(self.source):
            raise ValueError(f"the saved position is in a source of {state['n']} elements, this "
                             f"one has {len(self.source)}. Resume with the same data.")
        self._resume = self._position = [list(entry) for entry in state["position"]]

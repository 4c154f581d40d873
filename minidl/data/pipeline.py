"""A data pipeline: the input of a rank, as pure functions of an index.

The plain forms: minidl/plain/input.py (the stages) and minidl/plain/shuffle.py (shard()). In this
file each stage is a method, and stages can be combined freely. The position of a pipeline can be
saved.

    from minidl.data import Pipeline, lengths

    batches = (Pipeline(files)                   anything with len() and [i]
               .interleave(records, cycle=4)     each file's records, four files at a time
               .shuffle(seed=0)                  another order every epoch
               .map(decode)                      runs in the workers
               .cache("/scratch/decoded")        stored once, for all ranks and epochs
               .shard(t.rank, t.size)
               .batch(32)
               .prefetch(4, workers="auto"))     loads ahead (prefetch.py)
    for batch in batches: ...                    one epoch; a second loop runs the next epoch

Every stage turns a sequence into a sequence (stages.py). A sequence is a length and a pure function
get(i). So workers may load the elements in any order. Random augmentations depend only on (seed,
epoch, element). The state is a few integers: the epoch, and how many elements each rank has used.
After `load_state_dict` the pipeline continues exactly at this position, also on another number of
ranks (partition.py).

filter() drops elements. batch() after filter() makes full batches from the elements that are left.
So the ranks use unequal numbers of elements and have unequal numbers of batches (parallel.data.join
trains on such batches).

A stream is a source that has no elements source[i] and can only be iterated over. An example is an
IterableDataset. The pipeline of a stream can only have the stages map, filter, batch and prefetch.
The stream holds its own position: the pipeline's
state_dict() contains the stream's state_dict(). If the stream has a method used(item), the pipeline
calls this method once for each item of a batch, just before it yields the batch. The pipeline does
not call used(item) for an item that is only loaded ahead.

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
    """A data pipeline, as described at the top of this file. Each stage is a method. It returns a
    new pipeline, and does not change this pipeline.

    source: an object with len() and [i], or a stream, which can only be iterated over."""

    def __init__(self, source):
        self.source, self._stages, self._late = source, [], []
        self.is_stream = isinstance(source, IterableDataset) or not hasattr(source, "__getitem__")
        self._filtered = self._shuffled = self._shard = self._batch = None
        self._prefetch, self._workers, self._say, self.device = 0, 1, None, None
        self.epoch, self._position, self._resume = 0, [], None
        self.found = None  # the line that workers="auto" reported: how many threads, and why

    # -- stages

    def map(self, fn):
        """Replaces each element by fn(element). fn may draw from the default generator: each
        element has its own random stream."""
        return self._element_stage(stages.mapped, fn)

    def filter(self, keep):
        """Keeps the elements for which keep(element) is true."""
        new = self._element_stage(stages.filtered, keep)
        new._filtered = True
        return new

    def shuffle(self, seed=0):
        """Puts all elements into a random order, which is new in every epoch. Call shuffle() before
        shard()."""
        self._only_before("shuffle", shard=self._shard, batch=self._batch)
        new = self._stage(stages.shuffled, seed)
        new._shuffled = True
        return new

    def interleave(self, fn=None, cycle=4, block=1):
        """fn turns each element into a part, which is a sequence with len() and [i]. If fn is None,
        the elements themselves are the parts. Takes the elements of `cycle` parts in turn, `block`
        elements of a part at a time. When a part ends, the next part takes its place."""
        self._only_before("interleave", shard=self._shard, batch=self._batch)
        return self._stage(stages.interleaved, fn or (lambda part: part), cycle, block)

    def cache(self, folder=None):
        """Keeps the results of the stages before cache(). They are kept in memory or, if `folder`
        is given, in this folder for all ranks."""
        self._only_before("cache", shuffle=self._shuffled, shard=self._shard, batch=self._batch)
        return self._stage(stages.cached, cache.Folder(folder) if folder else {})

    def shard(self, rank, size, tail=None, groups=None):
        """Keeps the elements of this rank. Their numbers are rank, rank + size and so on.

        tail:   how to treat the last elements (partition.py). The default is "split" after group(),
                otherwise "pad".
        groups: a seed, or None. A round is `size` neighbouring elements, one for each rank. With a
                seed, the rounds come in random order. With None, the elements stay in order."""
        self._only_before("shard", shard=self._shard, batch=self._batch)
        partition.check(rank, size, tail or "pad")
        new = self._stage(stages.sharded, rank, size, tail, groups)
        new._shard = rank, size
        return new

    def group(self, lists, collate=default_collate):
        """Makes batches of chosen elements. lists(epoch) returns a list of indices for each batch.
        lengths.pools and lengths.packs make such functions. collate: a function from a list of
        elements to a batch. Call group() before shard()."""
        self._only_before("group", shard=self._shard, batch=self._batch)
        return self._stage(stages.grouped, lists, collate)

    def batch(self, batch_size, drop_last=False, collate=default_collate):
        """Makes batches of batch_size elements. The last batch may be smaller. drop_last=True
        leaves out a smaller batch. collate: a function from a list of elements to a batch. The
        default makes a Tensor (batch_size, ...) of each field."""
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
        """Loads up to n batches ahead.

        workers: how many threads load, or "auto" (prefetch.py). "auto" assumes that all ranks share
                 this machine.
        device:  "cuda" or "cuda:i": the batches are copied to this GPU in the background
                 (upload.py).
        say:     a function. With workers="auto" it is called with a line of text, which tells the
                 chosen number of workers. If say is None, rank 0 writes the line to stderr."""
        if n < 0 or workers != "auto" and workers < 1:
            raise ValueError("prefetch: want n >= 0, and workers >= 1 or 'auto'; got "
                             f"n={n} and workers={workers!r}")
        new = copy.copy(self)
        new._prefetch, new._workers, new._say = n, workers, say
        new.device = None if device == "cpu" else device
        return new

    def _stage(self, fn, *args):
        if self.is_stream:
            raise TypeError(f"{fn.__name__}: {type(self.source).__name__} is a stream, so it has "
                            "no elements source[i]. For a stream use only map, filter, batch and "
                            "prefetch")
        new = copy.copy(self)
        new._stages = [*self._stages, (fn, args)]
        return new

    def _element_stage(self, fn, argument):
        late = self.is_stream or self._filtered and self._batch
        new = copy.copy(self) if late else self._stage(fn, argument)
        if late:  # fn works on a stream's items, or on batches after filter()
            new._late = [*self._late, (fn, argument, self._batch is not None)]
        return new

    def _only_before(self, name, **others):
        for other, there in others.items():
            if there:
                raise ValueError(f"{name}() must come before {other}() in a pipeline. After "
                                 f"{other}() the elements depend on the epoch or on the number of "
                                 "ranks")

    # -- a pass

    def __len__(self):
        """Returns how many elements or batches this rank has in the next epoch. Raises TypeError
        for a stream or after filter()."""
        if self.is_stream or self._filtered:
            raise TypeError("a pipeline of a stream, or with filter(), has no len(): its length is "
                            "not known in advance")
        return self._elements(self._resume or []).n

    def __iter__(self) -> Iterator[Any]:
        # Starting a pass changes the pipeline's state. So the pass starts before any thread starts.
        position, self._resume = self._resume or [], None
        upload = None if self.device is None else Upload(self.device)
        return self._pass(*self._start(position), upload)

    def _start(self, position):
        """Returns (tasks, work, used) for a pass that starts at `position`. tasks: an iterable.
        work(task) makes the element of a task. used(task) counts this element as used."""
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
        """Returns a function work(number, item). If `batches` is True, `item` is a batch, and
        work() applies the stages after batch() to it. Otherwise `item` is an item of a stream, and
        work() applies the stages before batch() to it. number: the item's number. It selects the
        random numbers of the item."""
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
        """Makes batches. Yields (tasks, batch) for each batch. items: pairs (task, element). In
        place of an element that filter() has dropped, there is the object DROPPED. No batch
        contains DROPPED. `tasks` has the tasks of the batch's elements, and the tasks of the
        dropped elements between them. If the last elements make no batch, yields (their tasks,
        DROPPED)."""
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

    # -- the position

    def state_dict(self, gather=None):
        """Returns the position: a few integers, the same on all ranks. After filter() each rank has
        its own position. Then pass gather=partial(objects.all_gather, t), and call state_dict() on
        all ranks. Without `gather`, this case raises ValueError."""
        if self.is_stream:
            return {"epoch": self.epoch, "source": self.source.state_dict()}
        position = list(self._position if self._resume is None else self._resume)
        if position and self._filtered and self._resume is None:
            size, used = position[-1]
            if gather is None and size > 1:
                raise ValueError(f"rank {self._shard[0]}: after filter() every rank has its own "
                                 "position. Call state_dict(partial(objects.all_gather, t)) on "
                                 "all ranks")
            position[-1] = [size, *(gather(used) if gather else [used])]
        return {"epoch": self.epoch, "n": len(self.source), "position": position}

    def load_state_dict(self, state):
        """Continues from a saved position, on any number of ranks. The stages must be the same.
        Raises ValueError if the source has another length."""
        self.epoch = state["epoch"]
        if self.is_stream:
            self.source.load_state_dict(state["source"])
            return
        if state["n"] != len(self.source):
            raise ValueError(f"the saved position is in a source of {state['n']} elements, but "
                             f"this source has {len(self.source)}. Resume with the same data.")
        self._resume = self._position = [list(entry) for entry in state["position"]]

"""PyTorch's own tests of torch.distributed, on minidl's collectives.

PyTorch's wheel has its tests of all backends in one file, which calls `dist.all_reduce(...)` and so
on. Here `dist` is a stand-in, whose functions move the tensors' memory by minidl.comm; a test runs
on every simulated rank of one process. The all-reduce is tested with each algorithm of minidl.

The file skips what a backend cannot do, so it is loaded twice: as gloo, and as MPI, which alone has
an all-to-all on CPUs. A test counts as passed only if it called a collective of minidl.
Source: torch.testing._internal.distributed.distributed_test, PyTorch 2.13.
"""

import functools
import importlib.util
import os
import sys
import types
import unittest
from unittest import mock

import greenlet
import numpy as np
import torch
import torch.distributed as theirs
from torch.testing._internal import common_distributed
from torch.testing._internal.common_utils import TestCase

from minidl import comm
from minidl.comm.transport.scheduler import Deadlock, RankFailed
from minidl.plain import naive

FILE = "torch.testing._internal.distributed.distributed_test"
SIZES = (3, 4, 5, 8)
REPEAT = "\n\nTo execute this test"
ALL_REDUCES = {
    "ring": comm.ring.all_reduce, "ring_blocks": comm.ring_blocks.all_reduce,
    "tree": comm.tree.all_reduce, "naive": naive.all_reduce,
    "double_tree": comm.double_tree.all_reduce,
    "halving_doubling": comm.halving_doubling.all_reduce,
    "doubling": comm.halving_doubling.doubling_all_reduce,
    "shared_memory": comm.shared_memory.all_reduce}
OPS = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
       "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
DDP, SGD = "DistributedDataParallel of PyTorch's modules", "local SGD of PyTorch's modules"
WORDS = "the words of an error: minidl takes any function of NumPy as op"
NOT_MAPPED = {  # what has one of these words in its name, and why
    "GPUs": "cuda nccl gpu", "PyTorch's profiler": "profil",
    DDP: "ddp DDP DistributedDataParallel SyncBatchNorm no_sync static_graph undefined_grad "
         "different_graph unused verify_model sync_bn bucket",
    SGD: "average localSGD hierarchical",
    "time-outs, which the simulator has not": "timeout monitored",
    "tensors with indices: minidl's sparse_all_reduce takes indices and values": "sparse",
    WORDS: "complex_unsupported", "names of backends": "Backend_enum get_backend",
    "PyTorch's sampler": "DistributedSampler", "process groups that end": "destroy",
    "a rank has a process": "get_rank", "futures of PyTorch": "get_future",
    "several calls in one message": "coalescing"}


class NotMapped(Exception):
    """The test asks for something that minidl has not."""


class Group:
    """A process group: the ranks of the world in it, and the transport of each."""

    def __init__(self, ranks):
        self.ranks, self.transports = list(ranks), {}


class Dist(types.ModuleType):
    """Stands in for torch.distributed. One object serves all ranks: who calls is the greenlet."""

    ReduceOp, GroupMember, Backend = theirs.ReduceOp, theirs.GroupMember, theirs.Backend
    DebugLevel = theirs.DebugLevel

    def __init__(self, size, all_reduce):
        super().__init__("dist")
        self.calls, self._all_reduce = 0, all_reduce
        self._world, self._made, self._at = Group(range(size)), {}, {}
        self.group = types.SimpleNamespace(WORLD=self._world)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotMapped(f"dist.{name}")

    def enter(self, t):
        """t: this rank's transport."""
        self._at[greenlet.getcurrent()] = t
        self._world.transports[t.rank] = t

    def me(self):
        return self._at[greenlet.getcurrent()].rank

    def of(self, group, counts=True):
        """Returns (the group, this rank's transport in it); the transport is None outside."""
        group = self._world if group is None else group
        self.calls += counts
        if group is self.GroupMember.NON_GROUP_MEMBER:
            return group, None
        return group, group.transports[self.me()]

    # ---- groups

    def get_rank(self, group=None):
        _, t = self.of(group, False)
        return -1 if t is None else t.rank

    def get_world_size(self, group=None):
        _, t = self.of(group, False)
        return -1 if t is None else t.size

    def get_backend(self, group=None):
        return "minidl"

    def get_debug_level(self):
        return self.DebugLevel.OFF

    def new_group(self, ranks=None, **options):
        world = self._world.transports[self.me()]
        ranks = sorted(self._world.ranks if ranks is None else ranks)
        made = self._made.setdefault(self.me(), [])
        number = len(made)
        made.append(ranks)
        group = self._made.setdefault(("group", number), Group(ranks))
        t = world.subgroup(ranks)
        if t is None:
            return self.GroupMember.NON_GROUP_MEMBER
        group.transports[self.me()] = t
        return group

    # ---- collectives

    def broadcast(self, tensor, src, group=None, async_op=False):
        group, t = self.of(group)
        if t is not None:
            tensor.copy_(array_to(comm.tree.broadcast(t, array(tensor), group.ranks.index(src))))
        return done(async_op)

    def reduce(self, tensor, dst, op=theirs.ReduceOp.SUM, group=None, async_op=False):
        group, t = self.of(group)
        if t is not None:
            y = comm.tree.reduce(t, array(tensor), group.ranks.index(dst), op_of(op))
            if y is not None:
                tensor.copy_(array_to(y))
        return done(async_op)

    def all_reduce(self, tensor, op=theirs.ReduceOp.SUM, group=None, async_op=False):
        _, t = self.of(group)
        if t is not None:
            tensor.copy_(array_to(self._all_reduce(t, array(tensor).copy(), op_of(op))))
        return done(async_op)

    def all_reduce_coalesced(self, tensors, op=theirs.ReduceOp.SUM, group=None, async_op=False):
        for tensor in tensors:
            self.all_reduce(tensor, op, group)
        return done(async_op)

    def all_gather(self, tensor_list, tensor, group=None, async_op=False):
        _, t = self.of(group)
        if t is not None:
            whole, _ = comm.ring_blocks.all_gather_v(t, array(tensor).reshape(-1))
            for out, part in zip(tensor_list, np.split(whole, t.size), strict=True):
                out.copy_(array_to(part).reshape(out.shape))
        return done(async_op)

    def all_gather_coalesced(self, outputs, inputs, group=None, async_op=False):
        for i, tensor in enumerate(inputs):
            self.all_gather([of_rank[i] for of_rank in outputs], tensor, group)
        return done(async_op)

    def gather(self, tensor, gather_list=None, dst=0, group=None, async_op=False):
        group, t = self.of(group)
        if t is not None:
            y = comm.scatter_gather.gather(t, array(tensor)[None], group.ranks.index(dst))
            for out, part in zip(gather_list or [], [] if y is None else y, strict=True):
                out.copy_(array_to(part))
        return done(async_op)

    def scatter(self, tensor, scatter_list=None, src=0, group=None, async_op=False):
        group, t = self.of(group)
        if t is not None:
            root = group.ranks.index(src)
            x = np.stack([array(part) for part in scatter_list]) if t.rank == root else None
            y = comm.scatter_gather.scatter(t, x, np.empty_like(array(tensor)[None]), root)
            tensor.copy_(array_to(y[0]))
        return done(async_op)

    def all_to_all_single(self, output, input, output_split_sizes=None, input_split_sizes=None,
                          group=None, async_op=False):
        _, t = self.of(group)
        if t is not None:
            x = array(input)
            if input_split_sizes is None:
                y = comm.all_to_all.all_to_all(t, x.reshape(t.size, -1)).reshape(output.shape)
            else:
                y, _ = comm.all_to_all.all_to_all_v(t, x, input_split_sizes, output_split_sizes)
            output.copy_(array_to(y))
        return done(async_op)

    def all_to_all(self, output_tensor_list, input_tensor_list, group=None, async_op=False):
        _, t = self.of(group)
        if t is not None:
            x = np.concatenate([array(part) for part in input_tensor_list])
            y, counts = comm.all_to_all.all_to_all_v(t, x, [len(p) for p in input_tensor_list])
            for out, part in zip(output_tensor_list, np.split(y, np.cumsum(counts)[:-1]),
                                 strict=True):
                out.copy_(array_to(part))
        return done(async_op)

    def barrier(self, group=None, async_op=False):
        _, t = self.of(group)
        if t is not None:
            comm.tree.barrier(t)
        return done(async_op)

    # ---- objects

    def broadcast_object_list(self, object_list, src=0, group=None, device=None):
        group, t = self.of(group)
        if t is not None:
            object_list[:] = comm.objects.broadcast(t, object_list, group.ranks.index(src))

    def all_gather_object(self, object_list, obj, group=None):
        _, t = self.of(group)
        if t is not None:
            object_list[:] = comm.objects.all_gather(t, obj)

    def gather_object(self, obj, object_gather_list=None, dst=0, group=None):
        group, t = self.of(group)
        if t is not None:
            found = comm.objects.gather(t, obj, group.ranks.index(dst))
            if found is not None:
                object_gather_list[:] = found

    # ---- messages

    def send(self, tensor, dst=None, group=None, tag=0):
        self.isend(tensor, dst, group, tag).wait()

    def recv(self, tensor, src=None, group=None, tag=0):
        work = self.irecv(tensor, src, group, tag)
        work.wait()
        return work._source_rank()

    def isend(self, tensor, dst=None, group=None, tag=0):
        group, t = self.of(group)
        return Work(t.isend(array(tensor), group.ranks.index(dst), tag).wait)

    def irecv(self, tensor, src=None, group=None, tag=0):
        group, t = self.of(group)
        if src is not None:
            return Work(t.irecv(array(tensor), group.ranks.index(src), tag).wait, src)
        source, message = t.recv_any(tag)
        tensor.copy_(array_to(message.view(array(tensor).dtype).reshape(tensor.shape)))
        return Work(source=group.ranks[source])

    def P2POp(self, op, tensor, peer, group=None, tag=0):
        return functools.partial(op, tensor, peer, group, tag)

    def batch_isend_irecv(self, p2p_op_list):
        return [start() for start in p2p_op_list]


class Work:
    """The handle of a call under way. source: the rank whose message it receives."""

    def __init__(self, wait=None, source=None):
        self._wait, self._source = wait, source

    def wait(self):
        if self._wait is not None:
            self._wait()
            self._wait = None
        return True

    def is_completed(self):
        return self._wait is None

    def _source_rank(self):
        return self._source


def done(async_op):
    return Work() if async_op else None


def array(tensor):
    """Returns the tensor's memory as an array."""
    return tensor.detach().numpy()


def array_to(x):
    return torch.from_numpy(np.ascontiguousarray(x))


def op_of(op):
    name = str(op).rsplit(".", 1)[-1]
    if name not in OPS:
        raise NotMapped(f"ReduceOp.{name}")
    return OPS[name]


def load(backend, size):
    """Returns PyTorch's module of tests, as it is for this backend and number of ranks."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(size))
    spec = importlib.util.find_spec(FILE)
    module = sys.modules[FILE] = importlib.util.module_from_spec(spec)  # pickle looks there
    spec.loader.exec_module(module)
    make = module.create_collectives_object_test_list
    # as in processes of their own, all ranks draw the same numbers
    module.create_collectives_object_test_list = lambda: (torch.manual_seed(0), make())[1]
    os.environ["BACKEND"] = "mpi"  # the others skip groups of a few ranks
    return module


def case_of(module):
    """Returns the class of tests, which a rank makes an object of."""

    class Case(module.DistributedTest._DistTestBase, TestCase):
        def _barrier(self, *_, **__):
            module.dist.barrier()

        def call_dist_op(self, title, is_async, op, *args, expect_event=True,
                         secondary_op_call=None, profile_cuda=False, tensor_shapes=None, **kwargs):
            works = [op(*args, **kwargs)] + ([secondary_op_call()] if secondary_op_call else [])
            for work in works if is_async else ():
                work.wait()

    return Case


def cases(word=""):
    for backend in ("gloo", "mpi"):
        for size in SIZES:
            module = load(backend, size)
            case = case_of(module)
            for name in sorted(n for n in dir(case) if n.startswith("test_") and word in n):
                yield from judged(module, case, name, backend, size)


def judged(module, case, name, backend, size):
    """Yields a result for each all-reduce, where the test has one in its name; else one result."""
    reason = next((why for why, words in NOT_MAPPED.items()
                   if any(word in name for word in words.split())), None)
    test = getattr(case, name)
    only_here = backend == "gloo" or "all_to_all" in name
    if reason or not only_here or getattr(test, "__unittest_skip__", False):
        if reason and only_here and size == SIZES[0]:
            yield name, "not mapped", reason
        return
    for algorithm, all_reduce in ALL_REDUCES.items():
        outcome, why = ran(module, case, name, size, all_reduce)
        yield f"{name} of {size} ranks, {algorithm}", outcome, why
        if "all_reduce" not in name:
            return


def ran(module, case, name, size, all_reduce):
    """Runs a test on all ranks; returns (outcome, why)."""
    module.dist = Dist(size, all_reduce)
    module._get_default_group = lambda: module.dist.group.WORLD

    def of_rank(t):
        module.dist.enter(t)
        one = case(name)
        one.rank = t.rank
        try:
            getattr(one, name)()
        except unittest.SkipTest as error:
            raise NotMapped(f"skipped: {error}") from None
        except SystemExit as error:
            raise NotMapped(SKIPS.get(error.code, str(error))) from None

    try:
        # a decorator waits for the real processes after each level of logging
        with mock.patch.object(common_distributed.c10d, "barrier"):
            comm.simulate(size, of_rank)
    except RankFailed as error:
        cause = error.__cause__
        if isinstance(cause, NotMapped):
            return "not mapped", str(cause).split("\n")[0]
        if "process group has not been" in str(cause):
            return "not mapped", "a process group of PyTorch"
        return "wrong", f"{type(cause).__name__}: {str(cause).split(REPEAT)[0]}"
    except Deadlock as error:
        return "wrong", f"deadlock: {error}"
    if not module.dist.calls:
        return "not mapped", "calls no collective"
    return "passed", ""

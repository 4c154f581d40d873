"""The rules of transport.py, kept by the simulator here and by MPI in tests/mpi/."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest

from minidl.comm import ring
from minidl.comm.checks import SizeMismatch
from minidl.comm.labels import current_label
from minidl.comm.transport.protocol import Transport
from minidl.plain import naive
from tests.conftest import ranks


def neighbours(t):
    return (t.rank + 1) % t.size, (t.rank - 1) % t.size


DTYPES = ["f2", "f4", "f8", "i1", "i4", "i8", "?", "c8", ">f4", "M8[s]", "S3", "f4,i2"]


@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4)
def test_any_dtype_arrives_byte_for_byte(t, dtype):
    right, left = neighbours(t)

    def data(rank):
        raw = np.random.default_rng(rank).integers(0, 2, 7 * np.dtype(dtype).itemsize, np.uint8)
        return raw.view(dtype)

    got = t.sendrecv(data(t.rank), right, np.zeros(7, dtype), left)
    assert got.tobytes() == data(left).tobytes()
    incoming = t.irecv(got, left)
    t.send(data(t.rank)[::-1], right)
    incoming.wait()
    assert got.tobytes() == data(left)[::-1].tobytes()


@ranks(1, 2, 3)
def test_shapes_and_strides_on_both_sides(t):
    right, left = neighbours(t)
    x = np.arange(24.0).reshape(4, 6) + 100 * t.rank
    y = np.arange(24.0).reshape(4, 6) + 100 * left
    for view in (np.s_[1:3, ::2], np.s_[::-1, 2], np.s_[:, :0], np.s_[2, 3:4]):
        into = np.zeros((4, 6))
        t.sendrecv(x[view], right, into[view], left)
        assert (into[view] == y[view]).all()
        into[view] = 0
        assert not into.any()  # nothing was written beside the view
    assert t.sendrecv(np.array(t.rank), right, np.array(-1), left) == left
    flat = t.sendrecv(x, right, np.empty(24), left)  # only bytes are compared, not shapes
    assert (flat.reshape(4, 6) == y).all()
    turned = t.sendrecv(x, right, np.empty((6, 4)), left)
    assert (turned.reshape(4, 6) == y).all()


@ranks(1, 2, 3, 4)
def test_messages_keep_their_order_and_tags_are_independent(t):
    right, left = neighbours(t)
    into = np.zeros((6, 1), "i4")
    # Posted and waited for in different orders.
    requests = [t.irecv(into[i], left, tag=i // 3) for i in (3, 0, 1, 4, 2, 5)]
    sends = [t.isend(np.array([i], "i4"), right, tag=i // 3) for i in (0, 3, 1, 2, 4, 5)]
    for request in reversed(requests + sends):
        request.wait()
    assert into.ravel().tolist() == [0, 1, 2, 3, 4, 5]


@ranks(2, 3, 4, 5)
def test_recv_any_takes_messages_of_any_size_from_anybody(t):
    if t.rank:
        for i in range(3):
            t.send(np.full(t.rank, 10 * t.rank + i, "u1"), 0, tag=7)
        return
    got = [t.recv_any(tag=7) for _ in range(3 * (t.size - 1))]
    for rank in range(1, t.size):
        mine = [data for src, data in got if src == rank]
        assert [data.tolist() for data in mine] == [[10 * rank + i] * rank for i in range(3)]


@ranks(1, 2, 3, 4, 5)
def test_a_subgroup_renumbers_its_ranks(t):
    listed = list(range(t.size))[::-2]  # every second, from the last
    group = t.subgroup(listed)
    if t.rank not in listed:
        assert group is None
        return
    assert group.ranks == tuple(listed) and group.size == len(listed)
    assert group.rank == listed.index(t.rank) and group.world_rank == t.world_rank == t.rank
    total = ring.all_reduce(group, np.array([2.0**t.rank]))
    assert total == sum(2.0**r for r in listed)
    inner = group.subgroup([len(listed) - 1])
    assert (inner is not None) == (t.rank == listed[-1])
    if inner:
        assert inner.ranks == (t.rank,) and (inner.rank, inner.size) == (0, 1)


@ranks(2, 3, 4)
def test_a_duplicate_keeps_its_messages_apart(t):
    right, left = neighbours(t)
    first, second = t.subgroup(range(t.size)), t.subgroup(range(t.size))
    got = {name: np.zeros(1) for name in "abc"}
    for name, group in (("a", t), ("b", first), ("c", second)):
        group.isend(np.array([ord(name)], "f8"), right).wait()
    for name, group in (("c", second), ("a", t), ("b", first)):  # another order than sent
        group.recv(got[name], left)
        assert got[name] == ord(name)


@ranks(1, 2, 3)
def test_spawned_work_gives_its_result_or_its_error(t):
    duplicate = t.subgroup(range(t.size))
    handle = t.spawn(ring.all_reduce, duplicate, np.array([1.0]))
    assert naive.all_reduce(t, np.array([2])) == 2 * t.size  # meanwhile
    assert handle.wait() == t.size

    with t.named("outer"):  # context variables travel along
        assert t.spawn(current_label).wait() == "outer"

    def fail():
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        t.spawn(fail).wait()


@ranks(1, 2)
def test_an_event_passes_between_tasks(t):
    seen = []
    ready, done = t.event(), t.event()

    def worker():
        ready.wait()
        seen.append("worker")
        done.set()

    handle = t.spawn(worker)
    seen.append("main")
    ready.set()
    done.wait()
    handle.wait()
    assert seen == ["main", "worker"] and done.is_set()


@ranks(2, 3)
def test_a_size_mismatch_names_ranks_sizes_and_remedy(t):
    # Only rank 0 receives another size; all else matches, so nobody is left waiting.
    out = np.zeros(12 if t.rank == t.size - 1 else 10, "f4")
    right, left = neighbours(t)
    for label, error in (
        ("ring.all_reduce", "ring.all_reduce needs the same size on all ranks; expected 40 bytes "),
        (None, "recv needs a buffer of the message's size; expected 40 bytes "),
    ):
        for exchange in (Transport.sendrecv, type(t).sendrecv):  # by isend and irecv, and direct
            block = contextlib.nullcontext() if label is None else t.named(label)
            into = np.zeros(10, "f4")
            if t.rank:
                with block:
                    exchange(t, out, right, into, left)
            else:
                with pytest.raises(SizeMismatch, match=f"rank 0: {error}") as caught, block:
                    exchange(t, out, right, into, left)
                assert f"from rank {t.size - 1}, got " in str(caught.value)
    # Too short a message is as wrong as too long a one.
    if t.rank == 0:
        with pytest.raises(SizeMismatch, match="expected 8 bytes from rank 1, got 4"):
            t.recv(np.zeros(1), 1)
    if t.rank == 1:
        t.send(np.zeros(1, "f4"), 0)


@ranks(1, 3)
def test_wrong_arguments_are_refused_before_anything_moves(t):
    x = np.zeros(3)
    for peer in (-1, t.size):
        for call in (t.isend, t.irecv):
            with pytest.raises(
                ValueError, match=f"rank {t.rank}: .* 0 to {t.size - 1}; got {peer}"
            ):
                call(x, peer)
        with pytest.raises(ValueError, match=f"got {peer}"):
            t.sendrecv(x, peer, x, 0)
        with pytest.raises(ValueError, match=f"got {peer}"):
            t.sendrecv(x, 0, x, peer)
    for listed in ([], [0, 0], [t.size], [-1]):
        with pytest.raises(ValueError, match="distinct ranks"):
            t.subgroup(listed)
    for call in (t.isend, t.irecv):
        with pytest.raises(TypeError, match=r"host arrays .*got builtins\.list"):
            call([1.0], 0)
        with pytest.raises(TypeError, match="Python objects"):
            call(np.array([None]), 0)


@ranks(1, 2)
def test_scratch_grows_to_the_largest_request_and_is_the_same_memory(t):
    group = t.subgroup(range(t.size))  # nobody has asked it yet
    for n_elems, dtype in ((10, "u1"), (10, "f8"), (0, "f4"), (3, "f4"), (10, "f8"), (11, "f8")):
        scratch = group.scratch(n_elems, dtype)
        assert scratch.shape == (n_elems,) and scratch.dtype == dtype
    assert np.may_share_memory(scratch, group.scratch(1, "u1"))
    assert not np.may_share_memory(scratch, t.scratch(11, "f8"))


def test_importing_the_package_imports_neither_mpi4py_nor_greenlet():
    code = (
        "import sys, minidl.comm\nfrom minidl.comm.transport import background, mpi, sim, world\n"
        "print(sorted({'mpi4py', 'greenlet'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"

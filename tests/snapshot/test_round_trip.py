"""What save() accepts, load() gives back; the rest it refuses before anything is written."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn, optim, snapshot
from minidl.comm import simulate
from minidl.parallel import DataParallel
from minidl.precision import bf16
from minidl.snapshot import SnapshotError


class Holder(nn.Module):
    """A parameter of ones and one buffer."""

    def __init__(self, buffer, parameter=None):
        super().__init__()
        self.weight = nn.Parameter(np.ones(2, np.float32) if parameter is None else parameter)
        self.register_buffer("kept", minidl.Tensor(buffer))


class Remembers:
    """An object with a state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def array_of(dtype):
    return np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)


SAVED = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
STRANGE = [">f4", ">i2", ">u8", "c8", "c16", "M8[s]", "m8[s]"]
if np.dtype(np.longdouble) != np.dtype(np.float64):
    STRANGE.append("longdouble")


@pytest.mark.parametrize("dtype", [*SAVED, "bfloat16"])
def test_a_buffer_of_every_dtype_that_is_saved_comes_back(tmp_path, dtype):
    dtype = bf16.dtype() if dtype == "bfloat16" else np.dtype(dtype)
    there, here = Holder(array_of(dtype)), Holder(np.zeros((2, 3), dtype))
    snapshot.save(tmp_path, 1, model=there)
    snapshot.load(tmp_path, model=here)
    assert here.kept.dtype == dtype
    assert np.array_equal(here.kept.numpy(), array_of(dtype))


@pytest.mark.parametrize("dtype", STRANGE)
def test_a_dtype_that_cannot_come_back_is_refused(tmp_path, dtype):
    with pytest.raises(SnapshotError, match="buffer/kept has the dtype .* a snapshot holds"):
        snapshot.save(tmp_path, 1, model=Holder(array_of(dtype)))
    assert not list(tmp_path.glob("step-*"))


def test_a_parameter_of_another_byte_order_is_refused(tmp_path):
    model = Holder(np.ones(1, np.float32), np.array([1, 2, 3], ">f4"))
    with pytest.raises(SnapshotError, match="param/weight has the dtype >f4"):
        snapshot.save(tmp_path, 1, model=model)
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize("name, strange", {
    "in columns": lambda x: np.asfortranarray(x), "turned": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "every second": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "one number": lambda x: np.broadcast_to(x[0, 1], (2, 3)), "read-only": lambda x: frozen(x),
    "none": lambda x: x[:0], "without dimensions": lambda x: x[1:2, 1].reshape(())}.items())
def test_a_buffer_comes_back_whatever_its_strides(tmp_path, name, strange):
    x = strange(array_of("f4"))
    there, here = Holder(x), Holder(np.full(x.shape, 7, x.dtype))
    snapshot.save(tmp_path, 1, model=there)
    snapshot.load(tmp_path, model=here)
    assert here.kept.shape == x.shape and np.array_equal(here.kept.numpy(), x)


def frozen(x):
    x.setflags(write=False)
    return x


@pytest.mark.parametrize("buffer", [frozen(array_of("f4")), np.broadcast_to(np.float32(1), (2, 3))])
def test_a_model_that_cannot_be_written_to_is_refused_before_anything_changes(tmp_path, buffer):
    snapshot.save(tmp_path, 1, model=Holder(array_of("f4"), np.zeros(2, np.float32)))
    here = Holder(buffer)
    with pytest.raises(SnapshotError, match="buffer/kept: the model's array is read-only"):
        snapshot.load(tmp_path, model=here)
    assert np.array_equal(here.weight.numpy(), np.ones(2))


@pytest.mark.parametrize("step", [-1, 1.0, True, "7", None, np.float32(3)])
def test_a_step_that_is_no_whole_number_from_0_on_is_refused(tmp_path, step):
    with pytest.raises(SnapshotError, match="wanted a step from 0 on"):
        snapshot.save(tmp_path, step, model=nn.Linear(2, 2))
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize("step", [0, np.int64(5), 10**9])
def test_other_steps_come_back(tmp_path, step):
    snapshot.save(tmp_path, step, model=nn.Linear(2, 2))
    assert snapshot.load(tmp_path, model=nn.Linear(2, 2)) == step
    assert snapshot.steps(tmp_path) == [step]


@pytest.mark.parametrize("value", [
    0, 1.5, -math.inf, 2**70, True, None, "", "\u00e9\ud800", [], [1, [2.5, None]], {"a": {"b": 1}},
    np.float32(0.1), np.int8(3), np.bool_(True), np.array(2.5)])
def test_a_state_of_numbers_and_text_comes_back(tmp_path, value):
    there, here = Remembers({"value": value}), Remembers({"value": None})
    snapshot.save(tmp_path, 1, model=nn.Linear(2, 2), it=there)
    snapshot.load(tmp_path, model=nn.Linear(2, 2), it=here)
    assert here.state == {"value": value}


@pytest.mark.parametrize("value", [
    1j, b"x", {1, 2}, {1: 2}, {"a": {None: 2}}, np.array([1.0]), np.ones((2, 2)), object(),
    np.complex64(1), np.longdouble(1), np.datetime64("2020-01-01"), [10**5000], minidl.ones(1)])
def test_a_state_that_cannot_come_back_is_refused(tmp_path, value):
    with pytest.raises(SnapshotError, match="it: a snapshot holds"):
        snapshot.save(tmp_path, 1, model=nn.Linear(2, 2), it=Remembers({"value": value}))
    assert not list(tmp_path.glob("step-*"))


def test_an_option_that_cannot_come_back_is_refused(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.1 + 0j
    with pytest.raises(SnapshotError, match="optimizer: a snapshot holds"):
        snapshot.save(tmp_path, 1, model=model, optimizer=optimizer)
    assert not list(tmp_path.glob("step-*"))


def test_what_one_rank_cannot_save_is_refused_on_all(tmp_path):
    def body(t):
        model = DataParallel(Holder(np.ones(1, np.float32)), t)
        if t.rank == 0:
            model.module.register_buffer("more", minidl.Tensor(np.ones(1, np.complex64)))
        with pytest.raises(SnapshotError, match="rank 0: buffer/more has the dtype complex64"):
            snapshot.save(tmp_path, 1, model=model)
        with pytest.raises(SnapshotError, match="rank 0: it: a snapshot holds"):
            snapshot.save(tmp_path, 1, model=DataParallel(nn.Linear(2, 2), t),
                          it=Remembers({"value": 1j}))

    simulate(3, body)

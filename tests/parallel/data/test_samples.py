"""A rank's weight is its number of samples, or an error that asks for it."""

from collections import UserDict

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.parallel.data import samples
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import gpipe

X = np.random.default_rng(0).normal(size=(4, 4))

FORMS = {
    "array": lambda x: x, "Tensor": minidl.tensor, "dict": lambda x: {"x": x, "mask": x > 0},
    "mapping": lambda x: UserDict(x=x, mask=x), "tuple": lambda x: (x, x[:, 0]),
    "nested": lambda x: {"x": (minidl.tensor(x), None), "scale": np.float64(2.0)},
}


def first(batch):
    """The first array of a batch."""
    return next(samples.arrays("", batch))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1, bias=False)

    def forward(self, batch):
        return self.linear(first(batch))


def net():
    minidl.manual_seed(0)
    return Net().double()


@pytest.mark.parametrize("form", FORMS)
def test_three_samples_weigh_three_times_as_much_as_one(form):
    def body(t):
        model = DataParallel(net(), t)
        model(FORMS[form](X[:3] if t.rank == 0 else X[3:])).mean().backward()
        return np.array(model.module.linear.weight.grad)

    for g in simulate(2, body):
        np.testing.assert_allclose(g[0], X.mean(0), rtol=1e-14)


@pytest.mark.parametrize("batch, message", [
    ((X, X[:2]), "the same first dimension; got lengths 2 and 4. Pass n_samp"),
    ({"scale": np.float64(1)}, "got no arrays. Pass n_samples="),
    ([X, X], "a dict or tuple of Tensors and arrays; got a list. Pass n_sampl"),
    ({"x": X, "names": "abcd"}, "got a str. Pass n_samples="),
])
def test_what_cannot_be_known_is_asked(batch, message):
    with pytest.raises(TypeError, match=message):
        samples.count("rank 0", batch)


def test_a_call_may_say_it_of_any_batch():
    def body(t):
        model = DataParallel(net(), t)
        mine = X[:3] if t.rank == 0 else X[3:]
        model((mine, X[:2]), n_samples=len(mine)).mean().backward()
        return np.array(model.module.linear.weight.grad)

    np.testing.assert_allclose(simulate(2, body)[1][0], X.mean(0), rtol=1e-14)


@pytest.mark.parametrize("make", [
    lambda **options: nn.LSTM(4, 3, **options),
    lambda **options: nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 3, **options)),
    lambda **options: nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, **options),
])
def test_layers_that_take_tokens_first_ask_for_the_samples(make):
    def body(t, **options):
        model = DataParallel(make(**options), t)
        x = np.zeros((5, 2, 4), np.float32)
        output = model(x)
        (output[0] if isinstance(output, tuple) else output).sum().backward()

    with pytest.raises(RankFailed, match="batch_first=False, .* Pass n_samples="):
        simulate(2, body)
    simulate(2, lambda t: body(t, batch_first=True))


def test_a_pipeline_does_not_take_a_tuple_for_micro_batches():
    def body(t):
        pipe = Pipeline(t, cut(nn.Sequential(nn.Linear(4, 4)), 1), F.mse_loss, gpipe(1, 2))
        pipe.step((X, X), X)

    with pytest.raises(RankFailed, match="one array or Tensor, or as a list of 2 .*; got tuple"):
        simulate(1, body)

"""The second run of a recomputed segment has every setting of the first, whatever holds when
backward is called; and it takes and returns what any function does."""

from collections import namedtuple
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import minidl
from minidl import amp, nn
from minidl.memory.recompute import recompute, recompute_sequential
from minidl.nn import functional as F
from minidl.parallel.model.split import backward_to_inputs

# ---- settings ----


class Outer(nn.Module):
    """Its own flag decides, in a function that is no module's forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return F.dropout(self.inner(x), 0.5, self.training) * (2.0 if self.training else 3.0)


MODELS = {
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU()),
    "outer flag": Outer,
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True),
    "lstm": lambda: nn.LSTM(4, 4, num_layers=2, dropout=0.5),
}


@contextmanager
def mode_of(model, training):
    before = model.training
    model.train(training)
    yield
    model.train(before)


@contextmanager
def seeded(model):
    """The default generator is another one; it stays so until the block ends."""
    before = minidl.random.default_generator()
    minidl.manual_seed(77).uniform(5)
    yield
    minidl.random._default.set(before)


SETTINGS = {
    "as made": lambda model: nullcontext(),
    "eval": lambda model: mode_of(model, False),
    "autocast": lambda model: amp.autocast(),
    "no kernels": lambda model: minidl.use_fused(False),
    "another seed": seeded,
    "another generator": lambda model: minidl.random.using(minidl.Generator(5)),
    "no_grad": lambda model: minidl.no_grad(),
}


def first_of(y):
    return y[0] if isinstance(y, tuple) else y


WAYS = {
    "recompute": lambda model, x: recompute(model, x),
    "keep": lambda model, x: recompute(model, x, keep={"linear", "matmul"}.__contains__),
    "nested": lambda model, x: recompute(lambda x: recompute(model, x), x),
    "sequential": lambda model, x: recompute_sequential([model], x, 1),
    "plan": lambda model, x: recompute_sequential([model], x, [(0, 1, True)]),
}


def gradients(kind, run, first, second):
    """Everything that one step makes: forward under one setting, backward under another."""
    minidl.manual_seed(1)
    model = MODELS[kind]()
    x = np.random.default_rng(0).standard_normal((3, 5, 4) if kind in ("encoder", "lstm") else
                                                 (6, 4)).astype("f4")
    x = minidl.tensor(x, requires_grad=True)
    minidl.manual_seed(3)
    with SETTINGS[first](model):
        y = first_of(run(model, x)).float()
        loss = (y * y).sum()
    with SETTINGS[second](model):
        flags = [m.training for m in model.modules()]
        generator = minidl.random.default_generator()
        at = generator.get_state()
        loss.backward()
        assert flags == [m.training for m in model.modules()]
        assert generator is minidl.random.default_generator() and generator.get_state() == at
    return [y.array, x.grad, *(p.grad.array for p in model.parameters()), *(
        b.array for _, b in model.named_buffers())]


@pytest.mark.parametrize("second", SETTINGS)
@pytest.mark.parametrize("first", [name for name in SETTINGS if name != "no_grad"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_have_the_bits_without_recompute(kind, first, second):
    wanted = gradients(kind, lambda model, x: model(x), first, second)
    for name, way in WAYS.items():
        got = gradients(kind, way, first, second)
        for a, b in zip(wanted, got, strict=True):
            assert (a is None) == (b is None), name
            assert a is None or np.array_equal(a, b), name


def test_one_part_of_the_model_may_be_in_eval_mode():
    minidl.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5))
    model[0].eval()
    x = minidl.ones(2, 4)
    recompute(model, x).sum().backward()
    assert [m.training for m in model.modules()] == [True, False, True, True]


def test_settings_of_the_first_run_hold_in_the_two_parts_of_a_backward():
    """As a pipeline's part B and part W run them."""
    found = []
    for change in False, True:
        minidl.manual_seed(1)
        model = MODELS["dropout"]()
        x = minidl.ones(6, 4, requires_grad=True)
        y = recompute(model, x)
        if change:
            model.eval()
            minidl.manual_seed(9)
        weights, _ = backward_to_inputs([y], [np.ones((6, 4), "f4")])
        weights()
        found.append([x.grad, *(p.grad.array for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b)


# ---- what goes in and what comes out ----

Pair = namedtuple("Pair", "a b")
layer = nn.Linear(4, 4)
FORMS = {
    "tensor": lambda x: layer(x),
    "dict": lambda x: {"a": layer(x), "b": x * 2},
    "list": lambda x: [layer(x), layer(x)],
    "with None": lambda x: (layer(x), None),
    "nested": lambda x: ((layer(x), [layer(x)]), {"c": {"d": x.sin()}}),
    "number": lambda x: (layer(x), 3, "text", True, 2.5),
    "namedtuple": lambda x: Pair(layer(x), None),
    "one twice": lambda x: [layer(x).tanh()] * 2,
    "the input": lambda x: (x, layer(x)),
    "a weight": lambda x: (layer.weight, layer(x)),
    "constants": lambda x: (layer(x), x.detach(), x > 0, np.arange(3)),
    "one of one": lambda x: (layer(x),),
    "nothing": lambda x: None,
    "no gradient": lambda x: {"a": x.detach() * 2},
}


def described(nest):
    """The form of a nest: types, numbers, and which tensors want gradients."""
    if isinstance(nest, dict):
        return type(nest), {k: described(v) for k, v in nest.items()}
    if isinstance(nest, (tuple, list)):
        return type(nest), [described(v) for v in nest]
    if isinstance(nest, minidl.Tensor):
        return nest.shape, nest.dtype, nest.requires_grad, nest.tolist()
    return nest.tolist() if isinstance(nest, np.ndarray) else nest


def floats(nest):
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, (tuple, list)):
        return [y for inner in nest for y in floats(inner)]
    return [nest] if isinstance(nest, minidl.Tensor) and nest.requires_grad else []


@pytest.mark.parametrize("form", FORMS)
def test_a_segment_may_return_any_nest(form):
    forms, found = [], []
    for run in (lambda f, x: f(x)), recompute:
        leaf = minidl.tensor(np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4), requires_grad=True)
        layer.zero_grad()
        y = run(FORMS[form], leaf)
        forms.append(described(y))
        total = sum(((i + 1) * (t * t).sum() for i, t in enumerate(floats(y))), start=0.0)
        if floats(y):
            total.backward()
        found.append([leaf.grad, layer.weight.grad, layer.bias.grad])
        with minidl.no_grad():
            assert type(run(FORMS[form], leaf)) is type(y)
    assert forms[0] == forms[1]
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        # where the walk of one graph adds in another order than that of the graph in the graph
        assert a is None or np.allclose(a, b, rtol=1e-6, atol=1e-6)


def test_what_could_hide_a_tensor_is_refused():
    class Output:
        pass

    with pytest.raises(TypeError, match="got a Output, and recompute cannot find the Tensors"):
        recompute(lambda x: Output(), minidl.ones(3, requires_grad=True))


def test_tensors_come_by_keyword_and_in_nests():
    leaves = {name: minidl.tensor(np.arange(1.0, 4) + i, requires_grad=True)
              for i, name in enumerate("abcd")}

    def f(x, state, scale=None, more=None):
        return x * state[0] * scale + more["d"].tanh() * state[1]

    found = []
    for run in (lambda f, *a, **o: f(*a, **o)), recompute:
        a, b, c, d = (leaf * 2 for leaf in leaves.values())  # results: no leaves
        for leaf in leaves.values():
            leaf.grad = None
        y = run(f, a, (b, 3.0), scale=c, more={"d": d})
        y.sum().backward()
        found.append([y.array, *(leaf.grad.array for leaf in leaves.values())])
    for wanted, got in zip(*found, strict=True):
        assert np.array_equal(wanted, got)


def test_one_tensor_in_two_places_is_one_tensor_in_the_segment():
    x = minidl.ones(3, requires_grad=True)
    recompute(lambda a, b, c: a * (2 if a is b is c["x"] else 5), x, x, {"x": x}).sum().backward()
    assert x.grad.array.tolist() == [2, 2, 2]

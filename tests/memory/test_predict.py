"""The prediction equals the ledger: of the states exactly, of the activations too."""

import numpy as np
import pytest

import minidl
from minidl import memory, nn, optim
from minidl.memory.predict import predict
from minidl.nn import functional as F
from minidl.precision import amp

BILLION, GB = 10**9, 1e9


def test_the_papers_table():
    for n, world, wanted in [(7_500_000_000, 64, (120, 31.4, 16.6, 1.875)),
                             (128 * BILLION, 64, (2048, 536, 284, 32)),
                             (1_500_000_000, 1, (24, 24, 24, 24))]:
        for zero, gigabytes in enumerate(wanted):
            held = predict(n, precision="O2", zero=zero, world=world)["total"] / GB
            assert abs(held - gigabytes) < 0.05 * (1 if gigabytes > 2 else 0.1)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 64])
def test_shares_of_the_stages(zero, world):
    n, share = 1000, -(-1000 // world)
    held = predict(n, precision="O2", zero=zero, world=world)
    shares = [share if stage <= zero else n for stage in (3, 2, 1, 1)]
    assert [held[kind] for kind in memory.STATES] == [
        w * s for w, s in zip((2, 2, 4, 8), shares, strict=True)]
    assert held["total"] == sum(held[kind] for kind in memory.STATES)


MODELS = {
    "gpt": (lambda: nn.GPT(vocab_size=50, context=24, width=32, n_layers=3, n_heads=4),
            lambda rows: tuple(np.random.default_rng(0).integers(0, 50, (2, rows, 24)))),
    "mlp": (lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1),
                                  nn.Linear(64, 50)),
            lambda rows: (np.random.default_rng(0).standard_normal((rows, 20), dtype=np.float32),
                          np.random.default_rng(0).integers(0, 50, rows))),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(),
                                  nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 50)),
            lambda rows: (np.random.default_rng(0).standard_normal((rows, 1, 8, 8),
                                                                   dtype=np.float32),
                          np.random.default_rng(0).integers(0, 50, rows))),
}


def loss(model, x, y):
    return F.cross_entropy(model(x).reshape(-1, 50), y.reshape(-1))


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "momentum", "sgd"])
def test_prediction_equals_the_ledger_after_a_step(name, level, optimizer):
    build, data = MODELS[name]
    minidl.manual_seed(0)
    model, batch = build(), data(17)
    state = {k: v.array.copy() for k, v in model.state_dict().items()}
    place = minidl.random.default_generator().get_state()
    predicted = predict(model, batch, loss, level, optimizer)
    assert minidl.random.default_generator().get_state() == place
    assert all(np.array_equal(v, state[k]) and v.dtype == state[k].dtype
               for k, v in model.state_dict().items())
    assert "forward" not in vars(model)

    step = {"adamw": optim.AdamW, "sgd": optim.SGD,
            "momentum": lambda p: optim.SGD(p, momentum=0.9)}[optimizer](model.parameters())
    model, step, scaler = amp.initialize(model, step, level)
    value = loss(model, *(minidl.tensor(x) for x in batch))
    saved = minidl.memory.saved_bytes(value)
    scaler.scale(value).backward()
    assert scaler.step(step)
    held = memory.totals(model, step)
    buffers = sum(b.nbytes for b in model.buffers())
    held["parameters"] -= buffers  # batch norm's, which no formula of 16 bytes knows
    assert {kind: held[kind] for kind in memory.STATES} == {
        kind: predicted[kind] for kind in memory.STATES}
    assert abs(saved - predicted["activations"]) <= 0.02 * saved


def test_wrong_questions_are_refused():
    with pytest.raises(ValueError, match="got precision='O9', optimizer='adamw', zero=0"):
        predict(10, precision="O9")
    for wrong in ({"optimizer": "adagrad?"}, {"zero": 4}, {"zero": -1}):
        with pytest.raises(ValueError, match="predict wants a precision .O0"):
            predict(10, **wrong)
    model, data = MODELS["mlp"]
    with pytest.raises(ValueError, match=r"at least 2; got .*\[1, 1\] rows"):
        predict(model(), data(1), loss)

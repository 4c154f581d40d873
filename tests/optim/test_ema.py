"""The moving average of the weights: its formula, PyTorch's, and the weights left as they were."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim


def test_two_updates_by_hand():
    p = minidl.tensor([1.0, 2.0], requires_grad=True)
    ema = optim.EMA([p], decay=0.75)
    for values in ([5.0, 2.0], [9.0, 6.0]):
        p.data = np.array(values, np.float32)
        ema.update()
    # 1 -> 2 -> 3.75 and 2 -> 2 -> 3, exact in binary
    np.testing.assert_array_equal(ema.averages[0], [3.75, 3.0])


def test_it_is_pytorchs_averaged_model():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    theirs, mine = torch.nn.Linear(3, 2), nn.Linear(3, 2)
    mine.load_state_dict(theirs.state_dict())
    average = AveragedModel(theirs, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ema = optim.EMA(mine.parameters(), decay=0.9)
    average.update_parameters(theirs)  # PyTorch's first update copies, our constructor does
    rng = np.random.default_rng(0)
    for _ in range(4):
        for p, q in zip(mine.parameters(), theirs.parameters()):
            p.data = rng.standard_normal(p.shape).astype(np.float32)
            q.data = torch.tensor(p.array)
        ema.update()
        average.update_parameters(theirs)
    for a, q in zip(ema.averages, average.module.parameters()):
        np.testing.assert_allclose(a, q.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_inside_the_block_the_model_has_the_averages_and_after_it_its_own_weights():
    model = nn.Linear(2, 2)
    ema = optim.EMA(model.parameters(), decay=0.5)
    first = model.weight.array.copy()
    model.weight.data = first + 2
    ema.update()
    memory, version = model.weight.array, model.weight.version
    with pytest.raises(KeyError), ema.averaged():
        np.testing.assert_allclose(model.weight.array, first + 1, rtol=1e-6)
        assert model.weight.array is memory, "an optimizer's buckets may point there"
        raise KeyError
    np.testing.assert_allclose(model.weight.array, first + 2, rtol=1e-6)
    assert model.weight.version > version
    np.testing.assert_allclose(ema.averages[0], first + 1, rtol=1e-6)


def test_with_warmup_the_first_weights_are_soon_forgotten():
    p = minidl.tensor([0.0], requires_grad=True)
    ema = optim.EMA(p, decay=0.999, warmup=True)
    p.data = np.array([1.0], np.float32)
    ema.update()
    np.testing.assert_allclose(ema.averages[0], 1 - 2 / 11, rtol=1e-6)


def test_it_goes_on_from_its_state_and_refuses_another_models():
    p = minidl.tensor([1.0, 2.0], requires_grad=True)
    ema = optim.EMA([p], decay=0.5)
    p.data = np.array([3.0, 4.0], np.float32)
    ema.update()
    other = optim.EMA([minidl.zeros(2, requires_grad=True)], decay=0.5)
    other.load_state_dict(ema.state_dict())
    assert other.step == 1
    np.testing.assert_array_equal(other.averages[0], [2.0, 3.0])
    with pytest.raises(ValueError, match=r"the shapes \[\(3,\)\]; got \[\(2,\)\]"):
        optim.EMA([minidl.zeros(3, requires_grad=True)]).load_state_dict(ema.state_dict())


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="decay must be in"):
        optim.EMA([minidl.zeros(2)], decay=1.0)
    with pytest.raises(ValueError, match="no parameters"):
        optim.EMA([])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_average_of_weights_of_any_width_moves(dtype):
    """2 - 0.999**5000 = 1.9933 after 5,000 updates from 1 to 2. In two bytes it stood still."""
    p = nn.Parameter(np.ones(3, np.float32).astype(getattr(minidl, dtype)))
    ema = optim.EMA([p], decay=0.999)
    p.array[...] = 2
    for _ in range(5000):
        ema.update()
    assert ema.averages[0].dtype == np.float32
    np.testing.assert_allclose(ema.averages[0], 2 - 0.999**5000, rtol=1e-4)  # 5,000 roundings
    again = optim.EMA([p], decay=0.999)
    again.load_state_dict(ema.state_dict())
    np.testing.assert_array_equal(again.averages[0], ema.averages[0])
    with ema.averaged():
        assert p.dtype == getattr(minidl, dtype) and abs(float(p.array[0]) - 1.9933) < 0.01
    np.testing.assert_array_equal(p.array.astype("f4"), 2)

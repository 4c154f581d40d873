"""A NumPy array goes into every module where a Tensor does, with the same result."""

import inspect

import numpy as np
import pytest

import minidl
from minidl import nn

rng = np.random.default_rng(4)


def x(*shape):
    return rng.standard_normal(shape).astype("f4")


def ids(*shape, below=5):
    return rng.integers(0, below, shape)


P = x(4, 3) * 0.1
CASES = {  # {class: (arguments, inputs)}
    nn.AdaptiveAvgPool2d: ((2,), [x(2, 3, 5, 5)]),
    nn.AdaptiveMaxPool2d: ((2,), [x(2, 3, 5, 5)]),
    nn.AvgPool2d: ((2,), [x(2, 3, 4, 4)]),
    nn.BCELoss: ((), [1 / (1 + np.exp(-P)), (P > 0).astype("f4")]),
    nn.BCEWithLogitsLoss: ((), [P, (P > 0).astype("f4")]),
    nn.BatchNorm1d: ((3,), [x(4, 3)]),
    nn.BatchNorm2d: ((3,), [x(2, 3, 4, 4)]),
    nn.CNN: ((), [x(2, 1, 28, 28)]),
    nn.CausalSelfAttention: ((8, 2), [x(2, 5, 8)]),
    nn.Conv1d: ((3, 4, 3), [x(2, 3, 7)]),
    nn.Conv2d: ((3, 4, 3), [x(2, 3, 5, 5)]),
    nn.ConvTranspose1d: ((3, 4, 3), [x(2, 3, 7)]),
    nn.ConvTranspose2d: ((3, 4, 3), [x(2, 3, 5, 5)]),
    nn.CrossEntropyLoss: ((), [x(4, 3), ids(4, below=3)]),
    nn.Dropout: ((0.0,), [x(4, 3)]),
    nn.ELU: ((), [x(4, 3)]),
    nn.Embedding: ((5, 3), [ids(4)]),
    nn.EmbeddingBag: ((5, 3), [ids(4, 2)]),
    nn.FeedForward: ((8,), [x(2, 5, 8)]),
    nn.Flatten: ((), [x(2, 3, 4)]),
    nn.GELU: ((), [x(4, 3)]),
    nn.GLU: ((), [x(4, 6)]),
    nn.GPT: ((7, 6, 1, 2, 8), [ids(2, 6)]),
    nn.GRU: ((3, 4), [x(5, 2, 3)]),
    nn.GroupNorm: ((2, 4), [x(2, 4, 3)]),
    nn.HuberLoss: ((), [x(4, 3), x(4, 3)]),
    nn.Identity: ((), [x(4, 3)]),
    nn.InstanceNorm1d: ((3,), [x(2, 3, 4)]),
    nn.InstanceNorm2d: ((3,), [x(2, 3, 4, 4)]),
    nn.KLDivLoss: ((), [np.log(np.abs(P) + 1), np.abs(P)]),
    nn.L1Loss: ((), [x(4, 3), x(4, 3)]),
    nn.LSTM: ((3, 4), [x(5, 2, 3)]),
    nn.LayerNorm: ((3,), [x(4, 3)]),
    nn.LeakyReLU: ((), [x(4, 3)]),
    nn.Linear: ((3, 4), [x(2, 3)]),
    nn.Llama: ((7, 6, 1, 2, 8), [ids(2, 6)]),
    nn.MLP: ((3, 4, 2), [x(5, 3)]),
    nn.MSELoss: ((), [x(4, 3), x(4, 3)]),
    nn.MaxPool1d: ((2,), [x(2, 3, 6)]),
    nn.MaxPool2d: ((2,), [x(2, 3, 4, 4)]),
    nn.MoE: ((8, True, None), [x(2, 5, 8)]),
    nn.Mish: ((), [x(4, 3)]),
    nn.MultiheadAttention: ((8, 2), [x(5, 2, 8), x(5, 2, 8), x(5, 2, 8)]),
    nn.NLLLoss: ((), [np.log(np.abs(P) + 0.1), ids(4, below=3)]),
    nn.PReLU: ((), [x(4, 3)]),
    nn.RMSNorm: ((3,), [x(4, 3)]),
    nn.RNN: ((3, 4), [x(5, 2, 3)]),
    nn.RNNCell: ((3, 4), [x(2, 3)]), nn.LSTMCell: ((3, 4), [x(2, 3)]),
    nn.GRUCell: ((3, 4), [x(2, 3)]),
    nn.ReLU: ((), [x(4, 3)]),
    nn.SELU: ((), [x(4, 3)]),
    nn.SiLU: ((), [x(4, 3)]),
    nn.Sigmoid: ((), [x(4, 3)]),
    nn.SmoothL1Loss: ((), [x(4, 3), x(4, 3)]),
    nn.Softmax: ((-1,), [x(4, 3)]),
    nn.Softplus: ((), [x(4, 3)]),
    nn.Tanh: ((), [x(4, 3)]),
    nn.ReLU6: ((), [x(4, 3)]), nn.Hardtanh: ((), [x(4, 3)]), nn.Hardswish: ((), [x(4, 3)]),
    nn.Hardsigmoid: ((), [x(4, 3)]), nn.Softsign: ((), [x(4, 3)]), nn.LogSigmoid: ((), [x(4, 3)]),
    nn.CELU: ((), [x(4, 3)]), nn.Softmin: ((-1,), [x(4, 3)]),
    nn.Threshold: ((0.1, 2.0), [x(4, 3)]), nn.PixelShuffle: ((2,), [x(1, 4, 2, 3)]),
    nn.Dropout2d: ((0.5,), [x(2, 3, 4, 4)]),
    nn.TripletMarginLoss: ((), [x(4, 3), x(4, 3), x(4, 3)]),
    nn.LogSoftmax: ((-1,), [x(4, 3)]), nn.Unflatten: ((1, (3, 1)), [x(4, 3)]),
    nn.TransformerBlock: ((8, 2), [x(2, 5, 8)]),
    nn.TransformerDecoderLayer: ((8, 2, 16), [x(5, 2, 8), x(3, 2, 8)]),
    nn.TransformerEncoderLayer: ((8, 2, 16), [x(5, 2, 8)]),
    nn.Upsample: ((None, 2), [x(2, 3, 4, 4)]),
}
# They hold other modules, or are made of one; what they call is above.
OF_OTHERS = {nn.Module, nn.ModuleDict, nn.ModuleList, nn.ParameterDict, nn.ParameterList,
             nn.Sequential, nn.LoRALinear, nn.TransformerEncoder, nn.TransformerDecoder,
             nn.Transformer}


def test_every_module_has_a_case():
    found = {thing for thing in vars(nn).values()
             if inspect.isclass(thing) and issubclass(thing, nn.Module)}
    missing = sorted(one.__name__ for one in found - CASES.keys() - OF_OTHERS)
    assert not missing, f"add {missing} to CASES in tests/nn/test_numpy_in.py: arguments, inputs"


def tensors(result):
    return [result] if isinstance(result, minidl.Tensor) else [
        y for part in result if part is not None for y in tensors(part)]


@pytest.mark.parametrize("module", CASES, ids=lambda module: module.__name__)
def test_an_array_gives_what_a_tensor_gives(module):
    arguments, inputs = CASES[module]
    minidl.manual_seed(0)
    net = module(*arguments, **({"n_experts": 4} if module is nn.MoE else {}))
    net.eval()
    wanted = tensors(net(*map(minidl.tensor, inputs)))
    for y, w in zip(tensors(net(*inputs)), wanted, strict=True):
        assert y.dtype == w.dtype
        np.testing.assert_array_equal(y.numpy(), w.numpy())

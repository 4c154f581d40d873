"""The encoder computes what PyTorch's with the same weights computes."""

import numpy as np
import pytest

import minidl
from minidl import nn

SIZES = dict(d_model=8, nhead=2, dim_feedforward=16, dropout=0.0)
OPTIONS = [{}, dict(norm_first=True, batch_first=True, activation="gelu"), dict(bias=False)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_equal_pytorchs(options, masked):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(**SIZES, **options), 2, torch.nn.LayerNorm(8),
        enable_nested_tensor=False)
    ours = nn.TransformerEncoder(nn.TransformerEncoderLayer(**SIZES, **options), 2,
                                 nn.LayerNorm(8))
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(0).standard_normal((5, 5, 8)).astype("f4")
    mask = np.triu(np.ones((5, 5), bool), 1)
    padding = np.arange(5)[None] >= np.array([5, 3, 4, 5, 1])[:, None]
    a, b = minidl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y = ours(a, *([mask, padding] if masked else []))
    z = theirs(b, *([torch.tensor(mask), torch.tensor(padding)] if masked else []))
    y.sin().sum().backward()
    z.sin().sum().backward()
    close = dict(rtol=1e-4, atol=2e-5)  # float32, two layers of sums of 16 terms
    np.testing.assert_allclose(y.array, z.detach().numpy(), **close)
    np.testing.assert_allclose(a.grad, b.grad.numpy(), **close)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        np.testing.assert_allclose(p.grad, q.grad.numpy(), **close, err_msg=name)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # PyTorch's, of its own default
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_whole_transformer_is_pytorchs(options, masked):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    torch.manual_seed(0)
    sizes = dict(SIZES, num_encoder_layers=1, num_decoder_layers=2)
    theirs, ours = torch.nn.Transformer(**sizes, **options), nn.Transformer(**sizes, **options)
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    ours.load_state_dict(theirs.state_dict())
    rng = np.random.default_rng(0)
    first = options.get("batch_first", False)
    src, tgt = (rng.standard_normal((5, n, 8) if first else (n, 5, 8)).astype("f4")
                for n in (6, 4))
    masks, their_masks = {}, {}
    if masked:
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        theirs_mask = torch.nn.Transformer.generate_square_subsequent_mask(4)
        np.testing.assert_array_equal(mask, theirs_mask)
        padding = np.arange(6)[None] >= np.array([6, 3, 4, 5, 1])[:, None]
        masks = dict(tgt_mask=mask, memory_key_padding_mask=padding)
        theirs_padding = torch.tensor(np.where(padding, -np.inf, 0).astype("f4"))
        their_masks = dict(tgt_mask=theirs_mask, memory_key_padding_mask=theirs_padding)
    a, b = (minidl.tensor(v, requires_grad=True) for v in (src, tgt))
    c, d = (torch.tensor(v, requires_grad=True) for v in (src, tgt))
    y, z = ours(a, b, **masks), theirs(c, d, **their_masks)
    y.sin().sum().backward()
    z.sin().sum().backward()
    close = dict(rtol=1e-4, atol=5e-5)  # float32, three layers of sums of 16 terms
    np.testing.assert_allclose(y.array, z.detach().numpy(), **close)
    for mine, wanted in ((a, c), (b, d), *zip(ours.parameters(), theirs.parameters())):
        np.testing.assert_allclose(mine.grad, wanted.grad.numpy(), **close)


def test_layers_start_equal_and_are_not_shared():
    layer = nn.TransformerEncoderLayer(**SIZES)
    first, second = nn.TransformerEncoder(layer, 2).layers
    assert first is not layer and first.linear1.weight is not second.linear1.weight
    np.testing.assert_array_equal(first.linear1.weight.array, second.linear1.weight.array)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="'relu', 'gelu' or a function; got 'tanhh'"):
        nn.TransformerEncoderLayer(8, 2, activation="tanhh")
    assert nn.TransformerEncoderLayer(8, 2, activation=minidl.tanh).activation is minidl.tanh

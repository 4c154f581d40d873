"""Layers compute what PyTorch's layers with the same weights compute, forward and backward."""

import numpy as np
import pytest

import minidl
from minidl import nn
from tests.devices import host, put

torch = pytest.importorskip("torch", reason="compares with PyTorch")

X2 = (5, 6)
IMAGE = (2, 4, 7, 6)
LAYERS = [
    ("Linear", (6, 3), {}, X2),
    ("Linear", (6, 3), {"bias": False}, (2, 3, 6)),
    ("Conv1d", (4, 6, 3), {"padding": 1, "stride": 2}, (2, 4, 9)),
    ("Conv1d", (4, 6, 3), {"dilation": 2, "groups": 2}, (2, 4, 9)),
    ("Conv2d", (4, 6, 3), {"padding": 1, "groups": 2}, IMAGE),
    ("Conv2d", (4, 6, (3, 2)), {"stride": (2, 1), "dilation": 2, "bias": False}, IMAGE),
    ("MaxPool2d", (2,), {}, IMAGE),
    ("MaxPool2d", (3,), {"stride": 2, "padding": 1}, IMAGE),
    ("AvgPool2d", (2,), {"padding": 1}, IMAGE),
    ("AdaptiveAvgPool2d", (1,), {}, IMAGE),
    ("AdaptiveAvgPool2d", ((3, 4),), {}, IMAGE),
    ("LayerNorm", (6,), {}, X2),
    ("LayerNorm", ((7, 6),), {"bias": False}, IMAGE),
    ("RMSNorm", (6,), {}, X2),
    ("GroupNorm", (2, 4), {}, IMAGE),
    ("BatchNorm1d", (6,), {}, X2),
    ("BatchNorm1d", (4,), {"momentum": None}, (3, 4, 5)),
    ("BatchNorm2d", (4,), {"affine": False}, IMAGE),
    ("BatchNorm2d", (4,), {"track_running_stats": False}, IMAGE),
    ("Flatten", (), {}, IMAGE),
    ("ReLU", (), {}, X2), ("LeakyReLU", (0.2,), {}, X2), ("ELU", (1.5,), {}, X2),
    ("SiLU", (), {}, X2), ("GELU", (), {}, X2), ("GELU", (), {"approximate": "tanh"}, X2),
    ("Sigmoid", (), {}, X2), ("Tanh", (), {}, X2), ("Softplus", (), {}, X2),
    ("Softmax", (1,), {}, X2), ("Identity", (), {}, X2),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1}, (2, 4, 5)),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, IMAGE),
    ("ConvTranspose2d", (4, 2, (3, 2)), {"dilation": 2, "bias": False}, IMAGE),
    ("MaxPool1d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True}, (2, 4, 8)),
    ("AdaptiveMaxPool2d", ((3, 4),), {}, IMAGE),
    ("Upsample", (), {"scale_factor": 2}, IMAGE),
    ("Upsample", (), {"size": (5, 9), "mode": "bilinear", "align_corners": True}, IMAGE),
    ("InstanceNorm1d", (4,), {}, (3, 4, 5)),
    ("InstanceNorm2d", (4,), {"affine": True, "track_running_stats": True}, IMAGE),
    ("PReLU", (), {}, X2), ("PReLU", (4,), {"init": 0.1}, IMAGE), ("SELU", (), {}, X2),
    ("GLU", (), {}, X2), ("GLU", (1,), {}, IMAGE), ("Mish", (), {}, X2),
    ("LogSoftmax", (1,), {}, X2), ("Unflatten", (1, (2, 2)), {}, IMAGE),
    ("Softplus", (2.0, 0.5), {}, X2),
    ("Dropout2d", (0.0, True), {}, IMAGE),
    ("ReLU6", (), {}, X2), ("Hardtanh", (-0.5, 0.7), {}, X2), ("Hardswish", (), {}, X2),
    ("Hardsigmoid", (), {}, X2), ("Softsign", (), {}, X2), ("LogSigmoid", (), {}, X2),
    ("CELU", (0.5,), {}, X2), ("Softmin", (1,), {}, X2), ("Threshold", (0.1, 20.0), {}, X2),
    ("PixelShuffle", (2,), {}, IMAGE),
]


def pair(name, args, options):
    theirs = getattr(torch.nn, name)(*args, **options)
    ours = getattr(nn, name)(*args, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("name, args, options, shape", LAYERS,
                         ids=lambda v: v if isinstance(v, str) else None)
def test_layer_equals_pytorchs_forward_and_backward(name, args, options, shape, device):
    torch.manual_seed(0)
    ours, theirs = pair(name, args, options)
    ours.to(device)
    rng = np.random.default_rng(0)
    for mode in (True, False):  # training, then eval with the running statistics that left
        for net in (ours, theirs):
            net.train(mode)
            net.zero_grad()
        x = rng.standard_normal(shape).astype(np.float32)
        a = minidl.tensor(x, device=device, requires_grad=True)
        b = torch.tensor(x, requires_grad=True)
        y, z = ours(a), theirs(b)
        cotangent = rng.standard_normal(y.shape).astype(np.float32)
        y.backward(put(cotangent, device))
        z.backward(torch.tensor(cotangent))
        # float32: sums of up to ~100 terms in another order, a few hundred ulp at most
        close = dict(rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(host(y), z.detach().numpy(), **close)
        np.testing.assert_allclose(host(a.grad), b.grad.numpy(), **close)
        for (n, p), q in zip(ours.named_parameters(), theirs.parameters()):
            np.testing.assert_allclose(host(p.grad), q.grad.numpy(), **close, err_msg=n)
    for (n, p), q in zip(ours.named_buffers(), theirs.buffers()):
        # running means and variances: float32 sums of up to 84 terms, in another order
        np.testing.assert_allclose(host(p), q.numpy(), rtol=1e-5, atol=1e-6, err_msg=n)


def test_embedding_looks_up_and_gives_the_padding_row_no_gradient(device):
    torch.manual_seed(0)
    ours, theirs = pair("Embedding", (7, 3), {"padding_idx": 2})
    ids = np.array([[1, 2, 2], [6, 1, 0]])
    y, z = ours.to(device)(put(ids, device)), theirs(torch.tensor(ids))
    g = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
    y.backward(put(g, device))
    z.backward(torch.tensor(g))
    np.testing.assert_array_equal(host(y), z.detach().numpy())
    # at most two rows meet: their sum does not depend on the order
    gw = host(ours.weight.grad)
    np.testing.assert_array_equal(gw, theirs.weight.grad.numpy())
    assert (gw[2] == 0).all()


def test_embedding_bag_equals_pytorchs():
    torch.manual_seed(0)
    ids, offsets = np.array([1, 2, 2, 6, 1, 0]), np.array([0, 2, 2])
    for mode in ("sum", "mean", "max"):
        ours, theirs = pair("EmbeddingBag", (7, 3), {"padding_idx": 2, "mode": mode})
        y = ours(minidl.tensor(ids), minidl.tensor(offsets))
        z = theirs(torch.tensor(ids), torch.tensor(offsets))
        y.sum().backward()
        z.sum().backward()
        np.testing.assert_allclose(y.array, z.detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(ours.weight.grad, theirs.weight.grad.numpy(), rtol=1e-6)


def test_instance_norm_refuses_the_wrong_number_of_dimensions():
    with pytest.raises(ValueError, match="InstanceNorm1d wants 2 or 3 dimensions, got shape"):
        nn.InstanceNorm1d(3)(minidl.ones(2, 3, 4, 5))


def test_batch_norm_refuses_the_wrong_number_of_dimensions():
    with pytest.raises(ValueError, match="BatchNorm2d wants 4 dimensions, got shape \\(2, 3\\)"):
        nn.BatchNorm2d(3)(minidl.ones(2, 3))


def test_sequential_slices_and_module_list_iterates():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert isinstance(net[1:], nn.Sequential) and list(net[1:]) == [net[1], net[2]]
    assert net[-1] is net[2]
    layers = nn.ModuleList([nn.Linear(2, 2)]).append(nn.ReLU())
    assert [type(m).__name__ for m in layers] == ["Linear", "ReLU"]
    named = nn.Sequential({"fc": nn.Linear(2, 2), "act": nn.ReLU()})
    assert list(named.state_dict()) == ["fc.weight", "fc.bias"]

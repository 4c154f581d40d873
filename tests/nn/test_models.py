"""The three models learn, and the GPT generates."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.memory.saved_bytes import saved_bytes
from minidl.nn import functional as F
from tests.devices import host, put


def test_mlp_has_no_activation_at_the_end():
    assert [type(m).__name__ for m in nn.MLP(4, 8, 2)] == ["Linear", "ReLU", "Linear"]


def test_cnn_fits_a_few_images(device):
    minidl.manual_seed(0)
    net = nn.CNN(width=8).to(device)
    opt = optim.AdamW(net.parameters(), lr=1e-2)
    x = put(minidl.Generator(1).normal(20, 1, 8, 8), device)
    y = put(np.arange(20) % 10, device)
    for _ in range(60):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    # chance is log(10) = 2.30; sixty steps on twenty images fit them
    assert loss.item() < 0.5


def gpt(**options):
    minidl.manual_seed(0)
    return nn.GPT(vocab_size=11, context=8, n_layers=2, n_heads=2, width=16, **options)


def test_gpt_learns_to_count():
    net = gpt()
    opt = optim.AdamW(net.parameters(), lr=1e-2)
    ids = (np.arange(9) + np.arange(11)[:, None]) % 11
    for _ in range(60):
        opt.zero_grad()
        loss = F.cross_entropy(net(ids[:, :-1]).reshape(-1, 11), ids[:, 1:].reshape(-1))
        loss.backward()
        opt.step()
    assert loss.item() < 0.1
    out = net.generate([[3, 4, 5]], 10, temperature=0)
    np.testing.assert_array_equal(out[0], np.arange(3, 16) % 11)


@pytest.mark.gpu
def test_gpt_on_the_device_is_that_on_the_cpu():
    here, there = gpt(), gpt().to("cuda")
    ids = (np.arange(9) + np.arange(11)[:, None]) % 11
    losses = []
    for net in (here, there):
        opt = optim.AdamW(net.parameters(), lr=1e-2)
        for _ in range(3):
            opt.zero_grad()
            given, wanted = put((ids[:, :-1], ids[:, 1:].reshape(-1)), net.head.weight.device)
            loss = F.cross_entropy(net(given).reshape(-1, 11), wanted)
            loss.backward()
            opt.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # float32: sums in another order
    start = [[3, 4, 5], [9, 10, 0]]
    np.testing.assert_array_equal(host(there.generate(start, 3, temperature=0)),
                                  here.generate(start, 3, temperature=0))


def test_gpt_ties_its_head_to_the_embedding_unless_told_not_to():
    net = gpt()
    assert net.head.weight is net.token.weight
    assert "head.weight" not in dict(net.named_parameters())
    assert "head.weight" in dict(gpt(tied=False).named_parameters())


def test_gpt_starts_near_the_uniform_loss():
    # logits of standard deviation 0.02 * sqrt(width): without tying nothing favours a token
    ids = np.arange(8)[None]
    loss = F.cross_entropy(gpt(tied=False)(ids).reshape(-1, 11), ids.reshape(-1))
    assert loss.item() == pytest.approx(np.log(11), abs=0.1)


def test_generation_is_a_function_of_its_generator_and_leaves_the_mode():
    net = gpt(dropout=0.1)
    a = net.generate([[1]], 20, generator=minidl.Generator(5))
    b = net.generate([[1]], 20, generator=minidl.Generator(5))
    c = net.generate([[1]], 20, generator=minidl.Generator(6))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any() and net.training
    net.eval().generate([[1]], 1)
    assert not net.training
    top = net.generate([[1]], 50, top_k=1, generator=minidl.Generator(7))
    np.testing.assert_array_equal(top, net.generate([[1]], 50, temperature=0))


def test_a_low_temperature_takes_the_likeliest():
    # logits of a new GPT differ by some 0.02 * sqrt(width); noise of a few units is 1e-5 of that
    net = gpt()
    cold = net.generate([[1], [2]], 20, temperature=1e-7)
    np.testing.assert_array_equal(cold, net.generate([[1], [2]], 20, temperature=0))


def test_what_writes_to_the_residual_stream_starts_smaller():
    # 2 * n_layers such terms add up; 4 standard errors of the deviation of n draws
    minidl.manual_seed(0)
    n_layers = 3
    net = nn.GPT(vocab_size=11, context=8, n_layers=n_layers, n_heads=2, width=64)
    for block in net.blocks:
        for layer in (block.attention.qkv, block.feed_forward.up):
            n = layer.weight.numel()
            assert layer.weight.array.std() == pytest.approx(0.02, rel=4 / np.sqrt(2 * n))
        for layer in (block.attention.proj, block.feed_forward.down):
            wanted, n = 0.02 / np.sqrt(2 * n_layers), layer.weight.numel()
            assert layer.weight.array.std() == pytest.approx(wanted, rel=4 / np.sqrt(2 * n))


def test_gpt_starts_as_wide_as_it_is_told():
    minidl.manual_seed(0)
    net = nn.GPT(vocab_size=50, context=8, n_layers=2, n_heads=2, width=64, init_std=0.08)
    for weight, std in ((net.token.weight, 0.08), (net.blocks[1].feed_forward.up.weight, 0.08),
                        (net.blocks[0].attention.proj.weight, 0.04)):
        assert weight.array.std() == pytest.approx(std, rel=4 / np.sqrt(2 * weight.numel()))


def test_gpt_that_runs_its_blocks_again_has_the_same_gradients_and_holds_less():
    ids = np.arange(16).reshape(2, 8) % 11
    found = []
    for recompute in (0, 1, 2):
        net = gpt(recompute=recompute)
        loss = F.cross_entropy(net(ids).reshape(-1, 11), ids.reshape(-1))
        held = saved_bytes(loss)
        loss.backward()
        found.append((held, loss.item(), [p.grad.array for p in net.parameters()]))
    assert found[1][0] < found[2][0] < found[0][0]  # 2 segments keep one input more than 1
    for _, loss, gradients in found[1:]:
        assert loss == found[0][1]
        for g, wanted in zip(gradients, found[0][2], strict=True):
            np.testing.assert_array_equal(g, wanted)


def test_gpt_refuses_more_than_its_context():
    with pytest.raises(ValueError, match="at most 8 tokens, because .* context .*; got 9"):
        gpt()(np.zeros((1, 9), int))

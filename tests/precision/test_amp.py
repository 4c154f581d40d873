"""Autocast: each op in the precision of its class, gradients in that of the weights."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.data import datasets
from minidl.function import Function
from minidl.memory.recompute import recompute
from minidl.mode import current
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.precision import amp
from tests.devices import host, put

HALF, SINGLE, DOUBLE = (np.dtype(t) for t in ("f2", "f4", "f8"))


def tensor(*shape, dtype=SINGLE, seed=0, requires_grad=True, device="cpu"):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return minidl.Tensor(put(values, device), requires_grad)


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_a_convolution_takes_what_another_one_made(layer):
    """A float16 input and a float32 weight: autocast casts before the op compares them."""
    net = nn.Sequential(layer(2, 2, 3), nn.ReLU(), layer(2, 2, 3))
    x = tensor(1, 2, *[8] * (net[0].weight.ndim - 2))
    with amp.autocast():
        y = net(x)
    y.backward(np.ones(y.shape, HALF))
    assert y.dtype == HALF and net[0].weight.grad.dtype == SINGLE
    with pytest.raises(TypeError, match="conv.*: input is float64, weight is float32"):
        net(x.double())


def test_every_op_is_in_one_list_and_the_lists_are_those_of_the_classes():
    lists = amp.lists()
    names = [name for names in lists.values() for name in names]
    assert len(names) == len(set(names)) > 60
    from_parallel = {f"{way}_{kind}" for way in ("ring", "ulysses")  # once that is imported
                     for kind in ("attention", "self_attention")}
    assert set(lists["white"]) - from_parallel == {
        "linear", "matmul", "conv2d", "conv_transpose2d", "scaled_dot_product_attention",
        "self_attention"}
    assert {"softmax", "layer_norm", "cross_entropy", "exp", "sum"} <= set(lists["black"])
    assert {"relu", "add", "cat", "dropout", "gelu", "embedding"} <= set(lists["grey"])
    assert lists["banned"] == ["binary_cross_entropy"]


def test_an_op_and_its_fused_form_are_in_the_same_class():
    classes, stack = {}, [Function]
    while stack:
        cls = stack.pop()
        stack += cls.__subclasses__()
        if cls.__module__.startswith(("minidl.ops.", "minidl.ops.extra.")):
            classes.setdefault(minidl.forward.op_name(cls), set()).add(cls.precision)
    assert len(classes) > 60
    assert {name: found for name, found in classes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("given", [HALF, SINGLE])
def test_results_have_the_dtype_of_the_class(given, fused, device):
    x, w = tensor(4, 6, dtype=given, device=device), tensor(6, 6, seed=1, device=device)
    labels = minidl.tensor([0, 1, 2, 3], device=device)
    with minidl.use_fused(fused), amp.autocast():
        assert (x @ w).dtype == HALF and F.linear(x, w).dtype == HALF
        for black in (x.exp(), F.softmax(x, -1), x.sum(), F.layer_norm(x, (6,), w[0], w[1]),
                      F.cross_entropy(x, labels), x.mean(0), x.var()):
            assert black.dtype == SINGLE
        for grey in (F.relu(x), F.gelu(x), x * 2, x.reshape(-1), F.dropout(x, 0.5)):
            assert grey.dtype == given
        assert (x + w[:4]).dtype == SINGLE  # the widest
        assert minidl.cat([x, w]).dtype == SINGLE
    assert (w @ w).dtype == SINGLE


def test_double_and_integers_are_left_alone():
    d, i = tensor(3, 3, dtype=DOUBLE), minidl.tensor([1, 2, 3])
    with amp.autocast():
        assert (d @ d).dtype == DOUBLE and d.exp().dtype == DOUBLE
        assert (i + 1).dtype == np.int64 and i.sum().dtype == np.int64


def test_gradients_have_the_dtype_of_what_they_belong_to_and_sum_in_it(device):
    w, x = tensor(5, 5, device=device), tensor(3, 5, seed=1, device=device)
    with amp.autocast():
        loss = ((x @ w) @ w).float().sum()
    loss.backward()
    assert w.grad.dtype == x.grad.dtype == SINGLE
    exact = w.grad.array.copy()
    w.grad = None
    ((x @ w) @ w).sum().backward()
    # both uses' gradients are rounded to fp16 once, 2**-11 of themselves, and summed in fp32
    wanted = host(w.grad)
    np.testing.assert_allclose(host(exact), wanted, rtol=0, atol=2**-9 * abs(wanted).max())


def test_a_weight_is_cast_once_in_a_forward_and_again_after_it_changed(monkeypatch):
    w, x = tensor(5, 5), tensor(3, 5, requires_grad=False, dtype=HALF)
    seen = []
    forward = minidl.ops.matmul.MatMul.forward
    monkeypatch.setattr(minidl.ops.matmul.MatMul, "forward",
                        lambda self, a, b: (seen.append(b), forward(self, a, b))[1])
    with amp.autocast():
        for _ in range(3):
            x @ w
        with amp.autocast(black=["exp"]):  # an inner block shares the casts
            x @ w
        tensor(3, 5, requires_grad=False) @ w  # an input's cast is not kept: it comes once
        casts = current().autocast.casts
        assert len(casts) == 1 and all(b is seen[0] for b in seen)
        with minidl.no_grad():
            w.fill_(2.0)
        y = x @ w
        assert seen[-1] is not seen[0] and np.all(seen[-1] == 2)
        assert y.dtype == HALF
    assert not casts and current().autocast is None


def test_lists_can_be_changed_for_a_block():
    x = tensor(4, 4)
    with amp.autocast(white=["softmax", "relu"], black=["matmul"]):
        assert F.softmax(x, -1).dtype == HALF and F.relu(x).dtype == HALF
        assert (x @ x).dtype == SINGLE
        with amp.autocast(enabled=False):
            assert F.relu(x).dtype == SINGLE
        assert F.relu(x).dtype == HALF
    with pytest.raises(ValueError, match="relu is in both lists"):
        with amp.autocast(white=["relu"], black=["relu"]):
            pass
    with pytest.raises(ValueError, match="no op 'sofmax'; did you mean 'softmax'"):
        with amp.autocast(white=["sofmax"]):
            pass


def test_a_banned_op_names_the_remedy():
    p, t = tensor(3).sigmoid(), tensor(3, seed=1).sigmoid()
    with amp.autocast():
        with pytest.raises(RuntimeError, match="Use binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(p, t)
        with amp.autocast(enabled=False):
            assert F.binary_cross_entropy(p, t).dtype == SINGLE
        assert F.binary_cross_entropy_with_logits(p, t).dtype == SINGLE


def test_autocast_as_a_decorator():
    @amp.autocast()
    def product(x):
        return x @ x

    assert product(tensor(3, 3)).dtype == HALF and tensor(3, 3).matmul(tensor(3, 3)).dtype == SINGLE


def test_a_function_of_ones_own_is_grey_unless_it_says_so():
    class Twice(Function):
        def forward(self, x):
            return x + x

        def backward(self, gy):
            return gy + gy

    class Wide(Twice):
        precision = "black"

    with amp.autocast():
        assert Twice.apply(tensor(3, dtype=HALF)).dtype == HALF
        assert Wide.apply(tensor(3, dtype=HALF)).dtype == SINGLE


def test_recompute_runs_again_in_the_same_precision(device):
    minidl.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU(), nn.Dropout(0.2))
    block.to(device)
    x = tensor(5, 6, device=device)

    def train(forward):
        minidl.manual_seed(1)
        block.zero_grad()
        x.grad = None
        with amp.autocast():
            y = forward(x)
        (y.float() ** 2).sum().backward()
        return [y.array, x.grad, *(p.grad.array for p in block.parameters())]

    plain, again = train(block), train(lambda x: recompute(block, x))
    for a, b in zip(plain, again, strict=True):
        assert a.dtype == b.dtype and np.array_equal(host(a), host(b))


# -- levels


def trained(level, model, x, y, n_steps, lr, **options):
    """The losses of training at a level of apex."""
    minidl.manual_seed(0)
    model = model().to(x.device)
    optimizer = optim.AdamW(model.parameters(), lr=lr)
    model, optimizer, scaler = amp.initialize(model, optimizer, level, **options)
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        output = model(x)
        assert output.dtype == SINGLE
        loss = F.cross_entropy(output.reshape(-1, output.shape[-1]), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer, max_norm=1.0)
        scaler.update()
        losses.append(loss.item())
    return losses, model, scaler


def text():
    tokens = np.random.default_rng(0).integers(0, 12, (6, 17))
    return minidl.tensor(tokens[:, :-1]), minidl.tensor(tokens[:, 1:].reshape(-1))


def gpt():
    return nn.GPT(vocab_size=12, context=16, width=16, n_layers=2, n_heads=2)


def digits():
    images, labels = datasets.digits()[0][:256]
    return minidl.tensor(images), minidl.tensor(labels)


def cnn():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))


@pytest.mark.parametrize("model, data, n_steps, lr",
                         [(gpt, text, 60, 1e-3), (cnn, digits, 30, 1e-2)])
def test_levels_0_1_and_2_begin_with_the_same_losses_and_learn_alike(model, data, n_steps, lr):
    """The first steps: training amplifies a rounding, of a processor's BLAS too, by some 20 percent
    a step, so that a bound on the last loss would hold on some processors only. A rounding to
    fp16 is 2**-12; these losses are means of many."""
    losses = {level: np.array(trained(level, model, *data(), n_steps, lr)[0])
              for level in ("O0", "O1", "O2")}
    for level in ("O1", "O2"):
        differ = abs(losses[level] - losses["O0"])[:10] / losses["O0"][:10]
        assert differ.max() < 2**-11, differ
    assert all(of[-1] < 0.8 * of[0] for of in losses.values())


@pytest.mark.gpu
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_level_on_the_device_is_that_on_the_cpu(level):
    x, y = (part[:16] for part in digits())
    here, there = (trained(level, cnn, x.to(device), y.to(device), 4, 1e-2)[0]
                   for device in ("cpu", "cuda"))
    # sums of up to 144 terms in another order; in fp16 a few roundings to 11 bits in each layer
    np.testing.assert_allclose(there, here, rtol=1e-4 if level == "O0" else 2e-2)


def test_levels_leave_the_state_in_their_dtypes():
    x, y = digits()
    for level, batch_norm, other in [("O0", SINGLE, SINGLE), ("O1", SINGLE, SINGLE),
                                     ("O2", SINGLE, HALF), ("O3", HALF, HALF)]:
        model = cnn()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, scaler = amp.initialize(model, optimizer, level)
        assert {t.dtype for t in [*model[1].parameters(), model[1].running_var]} == {batch_norm}
        assert {p.dtype for p in (*model[0].parameters(), *model[-1].parameters())} == {other}
        assert len(optimizer.low) == (4 if level == "O2" else 0)
        assert scaler.get_scale() == (65536 if level in ("O1", "O2") else 1)
        assert model(x[:4]).dtype == SINGLE
    assert amp.initialize(cnn(), optim.SGD(cnn().parameters()), "O2", 128.0)[2].get_scale() == 128
    with pytest.raises(ValueError, match="got 'O4'"):
        amp.initialize(cnn(), optim.SGD(cnn().parameters()), "O4")


def test_without_master_weights_small_updates_are_lost():
    """Negative control: O3's weights stop where O2's master copies still move."""
    def sgd(level):
        minidl.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = optim.SGD(model.parameters(), lr=1e-4)
        model, optimizer, scaler = amp.initialize(model, optimizer, level)
        x = minidl.randn(64, 8)
        target = (x @ minidl.randn(8, 4)).detach()
        for _ in range(2000):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    full, masters, none = sgd("O0"), sgd("O2"), sgd("O3")
    assert abs(masters - full) < 0.01 * full
    assert none > 1.15 * full


def test_without_loss_scaling_small_gradients_vanish():
    """Negative control: inputs of size 2**-12 and a factor of 2**-9 behind the layer give weight
    gradients of about 2**-26, most of which fp16 rounds to nothing; times 2**16 they are far from
    it."""
    x, y = digits()
    x = x.reshape(-1, 64) * 2.0**-12

    def sgd(level, **options):
        minidl.manual_seed(0)
        model = nn.Linear(64, 10)
        start = model.weight.array.copy()
        optimizer = optim.SGD(model.parameters(), lr=2.0**20)
        model, optimizer, scaler = amp.initialize(model, optimizer, level, **options)
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x) * 2.0**-9, y)
            scaler.scale(loss).backward()
            vanished = (model.weight.grad == 0).float().mean().item()
            scaler.step(optimizer)
            scaler.update()
        return optimizer.parameters()[0].array - start, vanished

    (full, _), (scaled, kept), (unscaled, lost) = (
        sgd("O0"), sgd("O2"), sgd("O2", loss_scale=1.0))
    # about 2**-11 for each rounding: of the start, the logits, their gradient
    assert abs(scaled - full).max() < 0.01 * abs(full).max()
    assert abs(unscaled - full).max() > 0.1 * abs(full).max()
    assert lost > kept + 0.2


def test_autocast_inside_data_parallel_and_agreed_skips():
    def body(t):
        minidl.manual_seed(0)
        model = DataParallel(nn.MLP(4, 8, 3), t)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        scaler = amp.GradScaler(init_scale=16.0)
        x = np.random.default_rng(t.rank).standard_normal((5, 4), dtype=SINGLE)
        taken = []
        for step in range(3):
            optimizer.zero_grad()
            x[0, 0] = np.inf if step == 1 and t.rank == 1 else 1
            with amp.autocast(), np.errstate(all="ignore"):
                loss = F.cross_entropy(model(minidl.tensor(x)), minidl.tensor([0, 1, 2, 0, 1]))
            with np.errstate(all="ignore"):
                scaler.scale(loss).backward()
            taken.append(scaler.step(optimizer))  # the sum over ranks carries the nan to all
            scaler.update()
        return taken, [p.array.tobytes() for p in model.parameters()]

    results = simulate(2, body)
    assert results[0] == results[1] and results[0][0] == [True, False, True]


def test_a_loss_scale_that_is_given_stays_after_overflows_and_good_steps():
    model = nn.Linear(2, 1, generator=minidl.Generator(0))
    model, optimizer, scaler = amp.initialize(model, optim.SGD(model.parameters()), "O1", 128.0)
    for factor in (1.0, np.inf, 1.0):
        scaler.scale(model(minidl.ones(1, 2)).sum() * factor).backward()
        assert scaler.step(optimizer) == (factor == 1.0)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.get_scale() == 128


class Named(nn.Module):
    """Takes a nest of inputs by keyword, and returns a dict."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, pair, *, scale, ids=None):
        x, more = pair["x"], pair["more"][0]
        assert ids is None or ids.dtype == np.int64  # integers are not cast
        self.seen = x.dtype, more.dtype, scale.dtype
        y = self.layer(x + more) * scale
        return {"logits": y, "parts": [y.sum(), (y, 3)]}


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_a_model_may_take_nests_and_keywords_and_return_a_dict(level, kind):
    model = Named()
    amp.initialize(model, optim.SGD(model.parameters(), lr=0.1), level)
    make = (lambda a: a) if kind == "arrays" else minidl.tensor
    ones = np.ones((2, 4), np.float32)
    out = model({"x": make(ones), "more": (make(ones),)}, scale=make(np.ones(1, np.float32)),
                ids=make(np.arange(3)))
    half = np.float16 if level != "O1" else np.float32
    assert model.seen == (half, half, half)
    assert out["logits"].dtype == np.float32 and out["parts"][1][0].dtype == np.float32
    assert out["parts"][1][1] == 3
    out["parts"][0].backward()
    assert model.layer.weight.grad is not None


def test_a_device_chooses_the_dtype_as_in_pytorch():
    pytest.importorskip("ml_dtypes", reason="bfloat16")
    x = minidl.ones(2, 2)
    for given, dtype in (((), np.float16), (("cuda",), np.float16), (("cpu",), minidl.bfloat16),
                         (("cpu", np.float16), np.float16), (("cuda", None, False), np.float32)):
        with amp.autocast(*given):
            assert (x @ x).dtype == dtype, given
    with pytest.raises(ValueError, match='device_type must be "cuda" or "cpu"; got True'):
        with amp.autocast(True):
            pass
    assert amp.GradScaler("cuda").get_scale() == amp.GradScaler(init_scale=2.0**16).get_scale()
    with pytest.raises(TypeError, match=r"write GradScaler\(init_scale=8\)"):
        amp.GradScaler(8)

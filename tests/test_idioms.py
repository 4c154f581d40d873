"""Runs common PyTorch programs with PyTorch and with minidl. Both must print the same.

Each function is a small program. In minidl the program gets its libraries under the same names:
torch, nn, F, optim, data (torch.utils.data) and utils (torch.nn.utils). Only the programs in
DIFFERENT print another text, for a reason. To add a program, write a function that prints. Random
numbers differ in the two libraries, so `known` sets the weights."""

import contextlib
import copy
import inspect
import io
import math
import warnings

import numpy as np
import pytest

import minidl

# Programs that print another text on purpose.
DIFFERENT = {
    "the_dtype_of_a_tensor": "a dtype is NumPy's: float32, and not torch.float32",
    "the_second_derivative": "a backward records no graph, so create_graph=True is refused",
    "random_weights_of_a_seed": "other random numbers, of the same distribution",
    "an_array_times_a_tensor": "the tensor's operator, and in the graph; PyTorch refuses it",
    "an_array_of_what_requires_a_gradient": "x.numpy() is allowed: it is the array, and no copy",
    "a_loss_of_shapes_that_broadcast": "refused: (n, 1) against (n,) is a mistake in most programs",
    "the_node_of_a_linear_layer": "a layer is one node here, Linear, and not addmm",
    "attention_prints_its_parts": "no class NonDynamicallyQuantizableLinear: out_proj is a Linear",
    "a_result_changed_before_backward": "exp has kept a copy here, so the gradient is right",
}
IDIOMS = []


def idiom(program):
    IDIOMS.append(program)
    return program


def known(torch, model):
    """Sets the model's weights without random numbers. Returns the model."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))
    return model


def small(torch):
    nn = torch.nn
    return known(torch, nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def batch(torch):
    return torch.linspace(-2, 2, 12).reshape(4, 3), torch.tensor([0, 1, 1, 0])


def error_of(function):
    try:
        function()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return next(kind.__name__ for kind in (RuntimeError, ValueError, IndexError, TypeError)
                    if isinstance(error, kind))
    return "no error"


# -- tensors as text

@idiom
def tensors_of_each_kind(torch):
    print(torch.tensor([1.0, 2.5]), torch.tensor([[1, 2], [3, 4]]), torch.tensor(True))
    print(torch.zeros(2, 3), torch.ones(2, dtype=torch.float64), torch.arange(3, dtype=torch.int32))


@idiom
def large_tensors_show_their_edges(torch):
    print(torch.arange(3000).reshape(3, 1000))
    print(torch.linspace(0, 1, 5000))


@idiom
def numbers_far_apart(torch):
    print(torch.tensor([1e-8, 1.0, 12345.678]), torch.tensor([float("inf"), -1.0, float("nan")]))


@idiom
def a_leaf_and_results(torch):
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    print(w, w * 2, (w * 2).sum(), w + 1, w - 1, w / 2, -w, w.exp(), w.mean())
    print(w.detach(), w.is_leaf, (w * 2).is_leaf, (w * 2).requires_grad)


@idiom
def shapes(torch):
    x = torch.zeros(2, 3, 4)
    print(x.shape, x.size(), x.size(1), x.shape[1:], x.shape[-1], f"{x.shape}", len(x.shape))
    print(x.shape == (2, 3, 4), x.shape == torch.Size([2, 3, 4]), x.numel(), x.dim(), x.ndim)
    b, t, c = x.shape
    print(b, t, c, list(x.shape), tuple(x.shape), x.shape.numel())


@idiom
def formats_of_numbers(torch):
    loss = torch.tensor(0.123456)
    print(f"{loss:.4f} {loss.item():.2e} {torch.tensor(7):3d}", "%.3f" % loss)
    print(round(loss.item(), 3))
    print(f"loss {loss}", "{:.1f}".format(torch.tensor([2.25])[0]), str(torch.tensor([1])))


@idiom
def print_options(torch):
    torch.set_printoptions(precision=2, sci_mode=False)
    print(torch.tensor([1.23456, 1e-5, 100.0]))
    torch.set_printoptions(profile="default")
    print(torch.tensor([1.23456, 1e-5, 100.0]))


@idiom
def the_device_of_a_tensor(torch):
    x = torch.ones(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(x.device, repr(x.device), x.device.type, device, x.to(device).device == device)
    print(torch.device("cuda", 1), repr(torch.device("cuda:1")), torch.device("cuda:1").index)
    print(torch.accelerator.is_available(), torch.backends.mps.is_available())


@idiom
def the_dtype_of_a_tensor(torch):
    print(torch.ones(2).dtype)


@idiom
def the_names_of_dtypes(torch):
    for name in ("float", "double", "half", "long", "int", "short", "bool"):
        print(torch.zeros(2, dtype=getattr(torch, name)))
    print(torch.float is torch.float32, torch.ones(1).dtype == torch.float,
          torch.ones(1).long().dtype == torch.int64)


@idiom
def modules_print_their_options(torch, nn):
    print(nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Conv2d(8, 8, 5, 2, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(8, 10), nn.LogSoftmax(dim=1)))


@idiom
def more_modules_print_their_options(torch, nn):
    print(nn.Embedding(9, 4, padding_idx=0), nn.LSTM(4, 5, 2, batch_first=True), nn.GRU(4, 5),
          nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.GELU(), nn.LeakyReLU(0.2), nn.Softmax(dim=-1),
          nn.ConvTranspose2d(4, 2, 4, 2, 1), nn.AvgPool2d(2), nn.Upsample(scale_factor=2),
          nn.Identity(), nn.ELU(), nn.PReLU(), nn.CrossEntropyLoss(), nn.MSELoss(), nn.ModuleDict())


@idiom
def a_list_of_modules_prints_equal_ones_once(torch, nn):
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    layers.append(nn.ReLU())
    layers.extend([nn.Linear(2, 1)])
    layers.insert(0, nn.Tanh())
    layers[1] = nn.Linear(2, 2, bias=False)
    print(layers, len(layers), [name for name, _ in layers.named_parameters()])
    del layers[0]
    print(layers[0], layers[-1], [type(layer).__name__ for layer in layers[1:3]])


@idiom
def attention_prints_its_parts(torch, nn):
    print(nn.MultiheadAttention(8, 2))


@idiom
def a_parameter_prints(torch, nn):
    print(nn.Parameter(torch.ones(2)), nn.Linear(2, 1).requires_grad_(False).bias.requires_grad)


@idiom
def the_node_of_a_linear_layer(torch):
    print(small(torch)(batch(torch)[0]))


@idiom
def random_weights_of_a_seed(torch, nn):
    torch.manual_seed(0)
    print(nn.Linear(2, 2).weight)


# -- making and changing tensors

@idiom
def new_tensors_like_others(torch):
    x = torch.ones(2, 3)
    print(torch.zeros_like(x), torch.full_like(x, 7), x.new_zeros(2), x.new_ones((1, 2)))
    print(torch.eye(2), torch.full((2,), 3), torch.empty(0), torch.arange(0, 1, 0.25))


@idiom
def tensors_of_arrays_and_back(torch):
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = torch.from_numpy(a)
    a[0, 0] = 9
    print(x, x.numpy() is not None, np.array(x).sum(), torch.tensor(a.astype(np.float64)))
    print(np.sqrt(torch.tensor([4.0, 9.0])), np.abs(torch.tensor([-1.0])), np.asarray(x).shape)
    print(torch.Tensor([1, 2]), torch.Tensor(2, 3).shape, torch.Tensor(4).shape)
    print(torch.LongTensor([1, 2]), torch.FloatTensor([[1, 2]]), torch.as_tensor(a)[0])


@idiom
def arrays_and_tensors_in_one_formula(torch):
    x = torch.ones(2, dtype=torch.float64)
    print(np.float32(3) * x, x * np.ones(2), x + np.arange(2.0), x == np.array([1.0, 0.0]))


@idiom
def an_array_times_a_tensor(torch):
    print(error_of(lambda: np.ones(2) * torch.ones(2)))


@idiom
def an_array_of_what_requires_a_gradient(torch):
    print(error_of(lambda: torch.ones(2, requires_grad=True).numpy()))


@idiom
def a_function_of_numpy_refuses_what_requires_a_gradient(torch):
    print(error_of(lambda: np.sqrt(torch.ones(2, requires_grad=True))))


@idiom
def indices_of_each_kind(torch):
    x = torch.arange(12).reshape(3, 4)
    print(x[0], x[:, 1], x[1:, ::2], x[-1, -1], x[..., None].shape, x[None].shape)
    print(x[x > 5], x[[0, 2]], x[torch.tensor([0, 1]), torch.tensor([1, 2])], x[range(2), [3, 3]])
    y = x.clone()
    y[y % 2 == 0] = 0
    y[1] = torch.tensor([1, 1, 1, 1])
    y[:, 0] += 100
    print(y)


@idiom
def where_and_masks(torch):
    x = torch.tensor([[1.0, -2.0], [-3.0, 4.0]])
    print(torch.where(x > 0, x, 0.0), torch.where(x > 0), torch.where(x > 9)[0].shape)
    print(x.masked_fill(x < 0, float("-inf")).softmax(-1), (x > 0).nonzero(), (x > 0).sum())
    print((x > 0).nonzero(as_tuple=True)[1], (x > 0).any(), (x > 0).all(dim=1), ~(x > 0))


@idiom
def shapes_change(torch):
    x = torch.arange(24.0).reshape(2, 3, 4)
    print(x.view(6, -1).shape, x.permute(2, 0, 1).shape, x.transpose(1, 2).shape)
    print(x.flatten(1).shape)
    print(x.unsqueeze(0).shape, x[None].squeeze(0).shape, x[0].T.shape)
    print(x.unflatten(2, (2, 2)).shape)
    print(x[0, 0].expand(2, 4), x[0, 0].repeat(2, 1).shape, x.view_as(torch.zeros(4, 6)).shape)
    print(torch.cat([x, x], dim=1).shape, torch.stack([x, x]).shape)
    print([p.shape for p in x.split(2, 1)])


@idiom
def numpys_names_of_dimensions(torch):
    x = torch.arange(6.0).reshape(2, 3)
    print(x.sum(axis=0), x.mean(axis=1, keepdims=True), torch.max(x, axis=1).values)
    print(torch.cat([x, x], axis=1).shape, torch.stack([x, x], axis=0).shape, x.argmax(axis=1))


@idiom
def reductions(torch):
    x = torch.tensor([[3.0, 1.0], [2.0, 5.0]])
    print(x.sum(), x.mean(0), x.std(), x.var(dim=1, unbiased=False), x.max(), x.min(dim=0).values)
    print(x.argmax(), x.norm(), x.prod(), x.cumsum(1), x.median(), x.amax(1), x.logsumexp(0))
    values, indices = x.max(dim=1)
    print(values, indices, x.sort(descending=True).values, x.topk(1).indices, x.std(0))


@idiom
def equality(torch):
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    print(x == y, torch.equal(x, x.clone()), torch.equal(x, y), torch.allclose(x, x + 1e-9))
    print((x == y).all().item(), torch.isclose(x, y), x.eq(1), x is not None, torch.equal(x, x[:1]))


@idiom
def dtypes_meet(torch):
    i, f, h = torch.tensor([1, 2]), torch.tensor([0.5, 0.5]), torch.tensor([1.0]).half()
    print(i + f, i * 2.0, i / 2, i // 2, h + 1, h * f, (i > 1) + 1, f.double() + i)
    print(torch.tensor(3) / 2, -7 % torch.tensor(3), torch.tensor([7]).float() ** 0.5)


@idiom
def changes_in_place(torch):
    x = torch.zeros(3)
    x.add_(1).mul_(4).sub_(1).div_(2).clamp_(max=1.25)
    print(x, x.fill_(7), x.zero_(), x.copy_(torch.arange(3)))
    y = x.view(3, 1)
    y[0, 0] = 5
    print(x, x.data, x.data.fill_(2), x)


@idiom
def python_sees_numbers(torch):
    x = torch.tensor([3.0, 1.0, 2.0])
    print([float(v) for v in x], sum(x), max(x), sorted(x.tolist()), len(x), list(reversed([*x])))
    a, b, c = x
    print(a.item() + 1, float(b), int(c), bool(a > b), [10, 20, 30][torch.tensor(1)])
    print(error_of(lambda: bool(x)), error_of(lambda: x.item()), 1.0 in x, math.sqrt(b))


# -- autograd

@idiom
def a_gradient(torch):
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = (x ** 2).sum()
    y.backward()
    print(x.grad, y.item(), x.grad.norm(), x.grad.shape, isinstance(x.grad, torch.Tensor))
    x.grad.zero_()
    print(x.grad)
    x.grad = None
    print(x.grad)


@idiom
def gradients_add_up(torch):
    w = torch.ones(2, requires_grad=True)
    for _ in range(3):
        (w * 2).sum().backward()
    print(w.grad)


@idiom
def gradients_as_values(torch):
    x = torch.tensor(3.0, requires_grad=True)
    grad = torch.autograd.grad if hasattr(torch, "autograd") else torch.grad
    print(grad(x ** 3, x), grad(2 * x, [x])[0])


@idiom
def the_second_derivative(torch):
    x = torch.tensor(3.0, requires_grad=True)
    grad = torch.autograd.grad if hasattr(torch, "autograd") else torch.grad
    print(error_of(lambda: grad(x ** 3, x, create_graph=True)))


@idiom
def a_hook_on_a_tensor(torch):
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda g: print("y", g))
    handle = x.register_hook(lambda g: g * 10)
    y.sum().backward()
    print(x.grad)
    handle.remove()
    (x * 1).sum().backward()
    print(x.grad)


@idiom
def steps_by_hand(torch):
    w = torch.tensor([1.0, -1.0], requires_grad=True)
    for _ in range(3):
        (w ** 2).sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad.zero_()
    print(w)
    w.data -= 0.5
    print(w, w.requires_grad)


@idiom
def no_graph(torch):
    x = torch.ones(1, requires_grad=True)

    @torch.no_grad()
    def inside():
        return x * 2

    with torch.set_grad_enabled(False):
        print((x * 2).requires_grad, torch.is_grad_enabled())
    print(inside().requires_grad, (x * 2).detach().requires_grad, torch.is_grad_enabled())


@idiom
def what_backward_refuses(torch):
    x = torch.ones(2, requires_grad=True)
    print(error_of(lambda: (x * 2).backward()), error_of(lambda: torch.ones(1).backward()))
    y = (x * x).sum()
    y.backward()
    print(error_of(y.backward), error_of(lambda: x.add_(1)))


@idiom
def a_result_changed_before_backward(torch):
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y += 1
    print(error_of(lambda: y.sum().backward()))


@idiom
def a_gradient_is_given(torch):
    x = torch.ones(2, requires_grad=True)
    (x * 3).backward(gradient=torch.tensor([1.0, 10.0]))
    print(x.grad)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    print(y.grad, x.grad)


@idiom
def assignment_into_a_result(torch):
    x = torch.ones(3, requires_grad=True)
    y = torch.zeros(3)
    y[0] = x[0] * 2
    y[1:] = x[1:] * 3
    y.sum().backward()
    print(x.grad)


# -- modules

@idiom
def parameters_by_name(torch, nn):
    net = small(torch)
    for name, p in net.named_parameters():
        print(name, p.shape, p.requires_grad)
    print(sum(p.numel() for p in net.parameters() if p.requires_grad), [*net.state_dict()])
    print([name for name, _ in net.named_children()], len(net), type(net[1]).__name__)


@idiom
def a_module_of_ones_own(torch, nn, F):
    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.fc = nn.Linear(3, width)
            self.scale = nn.Parameter(torch.ones(1))
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return F.relu(self.fc(x)) * self.scale

    net = known(torch, Net(2))
    print(net, net(batch(torch)[0]).detach(), net.count, sorted(net.state_dict()))
    print(net.eval().training, net.train().training, net.fc.weight.shape, hasattr(net, "nothing"))


@idiom
def states_are_loaded(torch, nn):
    a, b = small(torch), torch.nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    print(b.load_state_dict(a.state_dict()), torch.equal(a[0].weight, b[0].weight))
    state = a.state_dict()
    state.pop("0.bias")
    state["more"] = torch.ones(1)
    print(b.load_state_dict(state, strict=False), error_of(lambda: b.load_state_dict(state)))


@idiom
def a_checkpoint_in_a_file(torch, optim):
    net = small(torch)
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(batch(torch)[0]).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"epoch": 3, "model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    found = torch.load(file)
    other = small(torch)
    print(found["epoch"], other.load_state_dict(found["model"]), other[0].bias)
    print(found["optimizer"]["param_groups"][0]["lr"], found["optimizer"]["state"][1])


@idiom
def hooks_of_modules(torch):
    net = small(torch)
    handle = net[0].register_forward_hook(lambda module, args, y: print("out", y.shape))
    net[2].register_full_backward_hook(lambda module, gx, gy: print("grad", gx[0].shape, gy[0]))
    x, _ = batch(torch)
    net(x).sum().backward()
    handle.remove()
    net(x)


@idiom
def weights_are_set(torch, nn):
    def init(module):
        if isinstance(module, nn.Linear):
            nn.init.ones_(module.weight)
            nn.init.constant_(module.bias, 0.5)

    net = small(torch).apply(init)
    print(net[0].weight, net[0].bias.data, nn.init.calculate_gain("relu"))
    net[0].weight.data.fill_(2)
    print(net[0].weight.data[0])


@idiom
def frozen_layers(torch, nn, optim):
    net = small(torch)
    for p in net[0].parameters():
        p.requires_grad = False
    optimizer = optim.SGD(filter(lambda p: p.requires_grad, net.parameters()), lr=0.1)
    net(batch(torch)[0]).sum().backward()
    optimizer.step()
    print(net[0].weight.grad, net[2].bias.grad, len(optimizer.param_groups[0]["params"]))


@idiom
def copies_of_models(torch):
    net = small(torch)
    twin = copy.deepcopy(net)
    twin[0].weight.data.zero_()
    print(net[0].weight.detach()[0], twin[0].weight.detach()[0])
    for p, q in zip(net.parameters(), twin.parameters()):
        q.data.copy_(0.5 * p.data + 0.5 * q.data)
    print(twin[0].weight.detach()[0])


@idiom
def an_embedding_of_given_weights(torch, nn):
    table = torch.arange(6.0).reshape(3, 2)
    layer = nn.Embedding.from_pretrained(table)
    print(layer(torch.tensor([2, 0])), layer.weight.requires_grad, layer)
    print(nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad)


@idiom
def norms_and_dropout_know_their_mode(torch, nn):
    x = torch.arange(6.0).reshape(3, 2)
    norm = nn.BatchNorm1d(2)
    print(norm(x).detach() + 10, norm.running_mean, norm.num_batches_tracked)
    print(norm.eval()(x).detach(), nn.Dropout(0.9).eval()(x), nn.Dropout(0.0, True)(x)[0])


@idiom
def images(torch, nn, F):
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    conv = known(torch, nn.Conv2d(2, 1, 3, padding=1))
    print(conv(x).shape, F.max_pool2d(x, 2), F.avg_pool2d(x, 2)[0, 0])
    print(F.interpolate(x, scale_factor=2).shape)
    print(nn.AdaptiveAvgPool2d((1, 1))(x).flatten(1), F.pad(x, (1, 1)).shape, x.mean(dim=(2, 3)))


@idiom
def sequences(torch, nn, utils):
    rows = [torch.arange(3.0), torch.arange(1.0), torch.arange(2.0)]
    print(utils.rnn.pad_sequence(rows, batch_first=True), utils.rnn.pad_sequence(rows).shape)
    out, (h, c) = known(torch, nn.LSTM(1, 2, batch_first=True))(torch.ones(2, 3, 1))
    print(out.shape, h.shape, torch.equal(out[:, -1], h[0]))


@idiom
def an_encoder(torch, nn):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(known(torch, layer), 2)
    print(model(torch.ones(1, 3, 4)).shape, len(model.layers))


# -- losses

@idiom
def losses(torch, nn, F):
    x, y = batch(torch)
    out = torch.tensor([[2.0, -1.0], [0.5, 0.25], [-1.0, 3.0], [0.0, 4.0]])
    print(F.cross_entropy(out, y), nn.CrossEntropyLoss(label_smoothing=0.1)(out, y))
    print(nn.CrossEntropyLoss(reduction="none")(out, y), nn.NLLLoss()(F.log_softmax(out, 1), y))
    print(nn.MSELoss()(out, out + 1), F.l1_loss(out, out * 2), nn.SmoothL1Loss()(out, out + 3))
    print(nn.BCEWithLogitsLoss()(out[:, 0], y.float()))
    print(F.binary_cross_entropy(torch.sigmoid(out[:, 0]), y.float()))


@idiom
def a_loss_of_shapes_that_broadcast(torch, F):
    print(error_of(lambda: F.mse_loss(torch.ones(3, 1), torch.zeros(3))))


@idiom
def accuracy(torch):
    x, y = batch(torch)
    out = small(torch)(x)
    _, predicted = torch.max(out.data, 1)
    print((predicted == y).sum().item(), len(y), (out.argmax(1) == y).float().mean())
    print(f"{100 * (predicted == y).float().mean():.1f} %", torch.softmax(out, dim=1).detach())


@idiom
def errors_of_shapes_and_dtypes(torch, nn, F):
    net = small(torch)
    print(error_of(lambda: net(torch.ones(2, 5))))
    print(error_of(lambda: torch.ones(2, 3) @ torch.ones(2, 3)))
    print(error_of(lambda: net(torch.ones(2, 3).double())))
    print(error_of(lambda: net(torch.ones(2, 3).long())))
    print(error_of(lambda: torch.ones(2) + torch.ones(3)), error_of(lambda: torch.ones(2)[5]))


# -- training

@idiom
def a_training_loop(torch, nn, optim):
    x, y = batch(torch)
    net, criterion = small(torch), nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for epoch in range(5):
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")
    print(net[2].bias)


@idiom
def adam_with_a_schedule(torch, nn, F, optim):
    x, y = batch(torch)
    net = small(torch)
    optimizer = optim.AdamW(net.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(4):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(scheduler.get_last_lr(), optimizer.param_groups[0]["lr"], f"{loss.item():.3f}")
    print(net[2].weight)


@idiom
def groups_of_parameters(torch, optim):
    net = small(torch)
    optimizer = optim.SGD([{"params": net[0].parameters()},
                           {"params": net[2].parameters(), "lr": 1e-3}], lr=0.1)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    print([group["lr"] for group in optimizer.param_groups], len(optimizer.param_groups))


@idiom
def gradients_are_clipped(torch, nn, utils):
    net = small(torch)
    (net(batch(torch)[0]).sum() * 10).backward()
    norm = utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
    print(norm, norm.item() > 1, f"{norm:.2f}", net[2].bias.grad)
    utils.clip_grad_value_(net.parameters(), 0.1)
    print(net[2].bias.grad)


@idiom
def gradients_of_several_batches(torch, F, optim):
    x, y = batch(torch)
    net = small(torch)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    total = 0.0
    for part, label in zip(x.split(2), y.split(2)):
        loss = F.cross_entropy(net(part), label) / 2
        loss.backward()
        total += loss.item()
    optimizer.step()
    print(f"{total:.4f}", net[2].bias)


@idiom
def a_closure(torch, optim):
    w = torch.tensor([2.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (w ** 2).sum()
        loss.backward()
        return loss

    print(optimizer.step(closure), w)


@idiom
def early_stopping(torch):
    best, waited = float("inf"), 0
    for loss in torch.tensor([1.0, 0.5, 0.6, 0.7]):
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
    print(best, waited, min(1.0, loss.item()), torch.tensor(best.item()))


@idiom
def parameters_as_a_vector(torch, utils):
    net = small(torch)
    v = utils.parameters_to_vector(net.parameters())
    print(v.shape, v.detach()[:3])
    utils.vector_to_parameters(v.detach() * 0 + 1, net.parameters())
    print(net[0].bias, net[2].weight)


@idiom
def autocast_on_a_cpu(torch, nn):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = nn.Linear(2, 2)(torch.ones(1, 2))
    print(y.dtype == torch.bfloat16, y.float().dtype == torch.float32)


# -- data

@idiom
def a_dataset_of_ones_own(torch, data):
    class Squares(data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return torch.tensor([float(i)]), i * i

    loader = data.DataLoader(Squares(), batch_size=2, shuffle=False, num_workers=0)
    for x, y in loader:
        print(x.shape, x.flatten(), y)
    print(len(loader), len(loader.dataset), next(iter(loader))[1])


@idiom
def tensors_as_a_dataset(torch, data):
    x, y = batch(torch)
    both = data.TensorDataset(x, y)
    print(len(both), both[1], len(data.DataLoader(both, 3, True, drop_last=True)))
    print(sum(len(b) for b, _ in data.DataLoader(both, batch_size=3, shuffle=True)))
    a, b = data.random_split(both, [3, 1], generator=torch.Generator().manual_seed(0))
    print(len(a), len(b), [p[1].item() for p in data.Subset(both, [2])])


@idiom
def a_sampler_of_several_ranks(torch, data):
    rows = list(range(7))
    for rank in range(2):
        sampler = data.DistributedSampler(rows, 2, rank, shuffle=False)
        print(len(sampler), list(sampler))
    sampler = data.DistributedSampler(rows, num_replicas=2, rank=1, shuffle=False, drop_last=True)
    sampler.set_epoch(1)
    print(list(sampler))


@idiom
def collate_by_hand(torch, data):
    rows = [(torch.ones(n), n) for n in (1, 2, 3)]

    def collate(samples):
        return torch.cat([x for x, _ in samples]), [n for _, n in samples]

    for x, n in data.DataLoader(rows, batch_size=2, collate_fn=collate):
        print(x, n)


@idiom
def the_same_seed_gives_the_same_numbers(torch):
    torch.manual_seed(1)
    x = torch.rand(3)
    torch.manual_seed(1)
    print(torch.equal(x, torch.rand(3)), torch.randn(2, 3).shape, torch.randperm(5).sum())
    g = torch.Generator().manual_seed(2)
    y = torch.randn(3, generator=g)
    print(torch.equal(y, torch.randn(3, generator=torch.Generator().manual_seed(2))))


@idiom
def sampling_of_classes(torch, F):
    p = F.softmax(torch.tensor([[0.0, 2.0]]), dim=-1)
    print(torch.multinomial(torch.tensor([[0.0, 1.0]]), 1), p, F.one_hot(torch.tensor([1, 0]), 3))
    print(torch.bincount(torch.tensor([1, 1])))


@idiom
def einsum_and_attention(torch, F):
    q = torch.arange(6.0).reshape(1, 1, 3, 2) / 6
    print(torch.einsum("bhqd,bhkd->bhqk", q, q))
    print(F.scaled_dot_product_attention(q, q, q, is_causal=True))
    mask = torch.tril(torch.ones(3, 3)) == 0
    scores = (q @ q.transpose(-2, -1) / math.sqrt(2)).masked_fill(mask, float("-inf"))
    print(F.softmax(scores, dim=-1) @ q)


def printed(program, torch, data, utils):
    """Returns what the program prints with this library."""
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "optim": torch.optim,
             "data": data, "utils": utils}
    text = io.StringIO()
    with contextlib.redirect_stdout(text), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about new rules of NumPy
        program(**{name: names[name] for name in inspect.signature(program).parameters})
    return text.getvalue()


@pytest.mark.parametrize("program", IDIOMS, ids=lambda program: program.__name__)
def test_a_program_prints_the_same_text(program):
    torch = pytest.importorskip("torch", reason="it prints the text to be compared")
    if "bfloat16" in inspect.getsource(program):
        pytest.importorskip("ml_dtypes", reason="it has bfloat16")
    theirs = printed(program, torch, torch.utils.data, torch.nn.utils)
    ours = printed(program, minidl, minidl.data, minidl.nn.utils)
    if program.__name__ in DIFFERENT:
        assert ours != theirs, f"they are equal now: take {program.__name__} out of DIFFERENT"
    else:
        assert ours == theirs


def test_each_difference_is_of_a_program():
    assert DIFFERENT.keys() <= {program.__name__ for program in IDIOMS}
    assert len(IDIOMS) > 60

"""Optimizers take PyTorch's steps, value by value, and their state can be put back."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim, use_fused
from minidl.cuda import dispatch
from minidl.tensor import Tensor
from tests.devices import host, put

CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.3}),
]


def gradients(shapes, n_steps, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(s) for s in shapes] for _ in range(n_steps)]


def run(name, options, params, grads):
    opt = getattr(optim, name)(params, **options)
    for step in grads:
        for p, g in zip(params, step):
            p.grad = put(np.array(g, p.dtype), p.device)
        opt.step()
    return opt


@pytest.mark.parametrize("name, options", CASES)
def test_every_step_equals_pytorchs(name, options, device):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    shapes = [(3, 4), (5,), ()]
    start = gradients(shapes, 1, seed=9)[0]
    ours = [nn.Parameter(put(np.array(s), device)) for s in start]
    theirs = [torch.nn.Parameter(torch.tensor(s)) for s in start]
    a = getattr(optim, name)(ours, **options)
    b = getattr(torch.optim, name)(theirs, **options)
    for step in gradients(shapes, 12):
        for p, q, g in zip(ours, theirs, step):
            p.grad, q.grad = put(np.array(g), device), torch.tensor(g)
        a.step()
        b.step()
        for p, q in zip(ours, theirs):
            # float64: the same formula with its products in another order
            np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name, options", CASES)
def test_a_restored_state_continues_to_the_same_bits(name, options, device):
    shapes = [(3, 4), (5,)]
    grads = gradients(shapes, 8)
    straight = [nn.Parameter(put(np.ones(s, np.float32), device)) for s in shapes]
    run(name, options, straight, grads)
    first = [nn.Parameter(put(np.ones(s, np.float32), device)) for s in shapes]
    opt = run(name, options, first, grads[:3])
    second = [nn.Parameter(p.array.copy()) for p in first]
    resumed = getattr(optim, name)(second, lr=99)  # options come with the state
    resumed.load_state_dict(opt.state_dict())
    for step in grads[3:]:
        for p, g in zip(second, step):
            p.grad = put(g.astype(p.dtype), device)
        resumed.step()
    for p, q in zip(straight, second):
        np.testing.assert_array_equal(host(p), host(q))


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler for the kernels")
@pytest.mark.parametrize("name, options", CASES)
def test_the_fused_kernel_takes_the_plain_steps(name, options, monkeypatch, device):
    shapes = [(3, 4), (5,), (), (0,), (300, 7)]
    grads = gradients(shapes, 8)
    results = []
    for fused in (True, False):
        params = [nn.Parameter(put(np.ones(s, np.float32), device)) for s in shapes]
        with minidl.use_fused(fused), monkeypatch.context() as patch:
            if fused:  # the op-by-op update must not run
                patch.setattr(getattr(optim, name), "update", None)
            run(name, options, params, [[np.float32(g) for g in step] for step in grads])
        results.append(params)
    for p, q in zip(*results):
        # float32, eight steps: products rounded in another order
        np.testing.assert_allclose(host(p), host(q), rtol=3e-6, atol=3e-7)


def test_loaded_state_is_a_copy():
    p = nn.Parameter(np.ones(3))
    opt = run("Adam", {}, [p], gradients([(3,)], 2))
    state = opt.state_dict()
    other = optim.Adam([nn.Parameter(np.ones(3))])
    other.load_state_dict(state)
    state["state"][0]["exp_avg"][...] = 7
    assert (next(iter(other.state.values()))["exp_avg"] != 7).all()


def test_a_state_for_other_shapes_changes_nothing():
    opt = run("Adam", {}, [nn.Parameter(np.ones(3))], gradients([(3,)], 2))
    other = optim.Adam([nn.Parameter(np.ones(4))])
    with pytest.raises(ValueError, match="exp_avg of parameter 0 wants .* got \\(3,\\)"):
        other.load_state_dict(opt.state_dict())
    assert other.state == {}
    with pytest.raises(ValueError, match="have \\[2\\] parameters, .* state have \\[1\\]"):
        optim.Adam([nn.Parameter(np.ones(3)), nn.Parameter(np.ones(3))]).load_state_dict(
            opt.state_dict())


@pytest.mark.parametrize("fused", [True, False])
def test_a_parameter_without_dimensions_keeps_its_state(fused):
    def after(n_steps, state=None):
        p = nn.Parameter(np.array(1.0, np.float32) if state is None else state[0])
        opt = optim.Adam([p], lr=0.1)
        if state is not None:
            opt.load_state_dict(state[1])
        for _ in range(n_steps):
            p.grad = np.asarray(0.5 * p.array, np.float32)
            opt.step()
        return p.array.copy(), opt.state_dict()

    with use_fused(fused):
        half = after(3)
        assert half[1]["state"][0]["exp_avg"].shape == ()
        assert after(2, half)[0] == after(5)[0]


def test_a_number_is_no_gradient_array():
    p = nn.Parameter(np.array(1.0, np.float32))
    with pytest.raises(TypeError, match="wraps a NumPy or CuPy array, got float32"):
        p.grad = np.float32(0.5)


def test_another_optimizers_state_is_refused():
    p = nn.Parameter(np.ones(3))
    sgd = run("SGD", {"momentum": 0.9}, [p], gradients([(3,)], 2))
    adam = optim.Adam([p])
    with pytest.raises(ValueError, match=r"Adam has no option \['dampening', 'momentum', 'nesterov"
                                         r".*another optimizer's state"):
        adam.load_state_dict(sgd.state_dict())
    with pytest.raises(ValueError, match="SGD has no option"):
        sgd.load_state_dict(adam.state_dict())
    assert adam.state == {}


@pytest.mark.parametrize("name, options", [("AdamW", {}), ("SGD", {"momentum": 0.9})])
def test_a_state_of_pytorchs_own_goes_on_as_there(name, options):
    torch = pytest.importorskip("torch")
    start, grads = np.arange(3, dtype=np.float32), gradients([(3,)], 6)
    theirs = torch.nn.Parameter(torch.tensor(start))
    their_opt = getattr(torch.optim, name)([theirs], lr=0.1, **options)
    p = nn.Parameter(start.copy())
    opt = getattr(optim, name)([p], lr=0.1, **options)
    for step, (g,) in enumerate(grads):
        if step == 3:
            p.array[...] = theirs.detach().numpy()
            opt.load_state_dict(their_opt.state_dict())
        theirs.grad, p.grad = torch.tensor(np.float32(g)), np.float32(g)
        their_opt.step()
        if step >= 3:
            opt.step()
    np.testing.assert_allclose(p.array, theirs.detach().numpy(), rtol=1e-6)


def test_groups_have_their_own_options():
    a, b = nn.Parameter(np.ones(2)), nn.Parameter(np.ones(2))
    opt = optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
    a.grad, b.grad = np.ones(2), np.ones(2)
    opt.step()
    assert a.array.tolist() == [0.9, 0.9] and b.array.tolist() == [0.5, 0.5]


def test_a_parameter_without_a_gradient_is_left_alone():
    p = nn.Parameter(np.ones(2))
    opt = optim.AdamW([p])
    opt.step()
    assert (p.array == 1).all() and opt.state == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])  # by the kernel; by `update`
@pytest.mark.parametrize("name, options", CASES)
def test_a_step_leaves_the_gradient_as_it_was(name, options, dtype):
    p = nn.Parameter(np.ones(3, dtype))
    opt = getattr(optim, name)([p], **options)
    for _ in range(2):
        p.grad = g = minidl.tensor([1, 2, 3], dtype=dtype)
        opt.step(unscale=0.5)
        assert p.grad is g and g.tolist() == [1, 2, 3]


def test_a_step_moves_the_version_so_a_stale_graph_is_refused():
    p = nn.Parameter(np.ones(2, np.float32))
    loss = (p * p).sum()
    p.grad = np.ones(2, np.float32)
    optim.SGD([p], lr=0.1).step()
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("make, message", [
    (lambda: optim.SGD([]), "got no parameters"),
    (lambda: optim.SGD([{"params": [nn.Parameter(np.ones(1))], "momentun": 1}]), "momentun"),
    (lambda: optim.SGD([Tensor(np.ones(1), True) * 2.0]), "the result of <Mul>"),
    (lambda: optim.SGD([3]), "got int"),
    (lambda: optim.SGD([nn.Parameter(np.ones(1))] * 2), "in two groups, or twice"),
    (lambda: optim.SGD([nn.Parameter(np.ones(1))], nesterov=True), "nesterov needs momentum"),
    (lambda: optim.Adam([nn.Parameter(np.ones(1))], betas=(0.9, 1.0)), "betas in \\[0, 1\\)"),
])
def test_bad_arguments_say_what_was_wanted(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_zero_grad_forgets_or_fills():
    p = nn.Parameter(np.ones(2))
    p.grad = g = minidl.ones(2, dtype=np.float64)
    opt = optim.SGD([p])
    opt.zero_grad(set_to_none=False)
    assert p.grad is g and (g == 0).all()
    opt.zero_grad()
    assert p.grad is None


def test_a_group_may_have_a_name_and_a_set_has_no_order():
    a, b = (nn.Parameter(np.ones(1, np.float32)) for _ in range(2))
    optimizer = optim.SGD([{"params": [a], "name": "all"}], lr=0.1)
    assert optimizer.param_groups[0]["name"] == "all"
    twin = optim.SGD([{"params": [b], "name": "all"}], lr=0.2)
    twin.load_state_dict(optimizer.state_dict())
    assert twin.param_groups[0]["lr"] == 0.1
    with pytest.raises(TypeError, match="a set has no order"):
        optim.SGD([{"params": {a, b}}], lr=0.1)

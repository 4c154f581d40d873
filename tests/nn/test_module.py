"""Modules keep names, order, state and modes as PyTorch does."""

import copy
import pickle

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.parallel.model.experts import expert_parallel
from tests.conftest import ranks
from tests.devices import host


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4))
        self.scale = nn.Parameter(np.ones(4, np.float32))

    def forward(self, x):
        return self.second(self.first(x)) * self.scale


def test_names_come_in_order_of_definition_parents_first():
    names = [n for n, _ in Net().named_parameters()]
    assert names == ["scale", "first.weight", "first.bias", "second.0.weight", "second.0.bias",
                     "second.2.weight", "second.2.bias"]
    assert [n for n, _ in Net().named_modules()] == ["", "first", "second", "second.0",
                                                     "second.1", "second.2"]


def test_state_dict_has_pytorchs_keys_and_shapes():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    ours = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Conv2d(2, 4, 3, groups=2),
                         nn.Embedding(5, 3), nn.LayerNorm((2, 3)), nn.GroupNorm(2, 4),
                         nn.MultiheadAttention(8, 2), nn.RMSNorm(4), nn.Conv1d(1, 2, 3))
    t = torch.nn
    theirs = t.Sequential(t.Linear(3, 4), t.BatchNorm1d(4), t.Conv2d(2, 4, 3, groups=2),
                          t.Embedding(5, 3), t.LayerNorm((2, 3)), t.GroupNorm(2, 4),
                          t.MultiheadAttention(8, 2), t.RMSNorm(4), t.Conv1d(1, 2, 3))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [v.shape for v in ours.state_dict().values()] == [
        tuple(v.shape) for v in theirs.state_dict().values()]
    ours.load_state_dict(theirs.state_dict())  # torch tensors are read through NumPy
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, theirs.state_dict()[name].numpy())


def test_load_copies_into_the_same_memory_and_reports_what_does_not_fit():
    a, b = Net(), Net()
    for p in a.parameters():
        p.array[...] = 7
    before = b.first.weight.array
    assert b.load_state_dict(a.state_dict()) == ([], [])
    assert b.first.weight.array is before and (before == 7).all()
    state = dict(a.state_dict())
    del state["scale"]
    with pytest.raises(KeyError, match="missing .*: \\['scale'\\], unexpected names: none"):
        b.load_state_dict(state)
    assert b.load_state_dict(state, strict=False) == (["scale"], [])


@pytest.mark.gpu
def test_a_state_goes_from_one_device_to_another():
    here, there = nn.Linear(3, 2), nn.Linear(3, 2).to("cuda")
    there.load_state_dict(here.state_dict())
    again = nn.Linear(3, 2)
    again.load_state_dict(there.state_dict())
    for p, q, r in zip(here.parameters(), there.parameters(), again.parameters(), strict=True):
        assert (p.device, q.device, r.device) == ("cpu", "cuda:0", "cpu")
        assert np.array_equal(p.array, host(q)) and np.array_equal(p.array, r.array)


def test_a_load_between_forward_and_backward_is_detected():
    net = Net()
    loss = net(minidl.ones(2, 3)).sum()
    net.load_state_dict(net.state_dict())
    with pytest.raises(RuntimeError, match="changed in place between forward and backward"):
        loss.backward()


def test_a_wrong_shape_loads_nothing_at_all():
    net = Net()
    state = {k: v.array.copy() for k, v in net.state_dict().items()}
    state["scale"] = np.full(4, 9, np.float32)
    state["second.2.bias"] = np.zeros(5, np.float32)
    with pytest.raises(ValueError, match=r"second.2.bias has shape \(4,\), the state has \(5,\)"):
        net.load_state_dict(state)
    assert (net.scale.array == 1).all()


def test_shared_parameter_is_listed_once_but_saved_under_both_names():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    getattr(net, "1").weight = net[0].weight
    assert [n for n, _ in net.named_parameters()] == ["0.weight"]
    assert list(net.state_dict()) == ["0.weight", "1.weight"]


def test_train_and_eval_reach_every_submodule_and_change_dropout():
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    x = minidl.ones(1000)
    assert net.eval()[1][0].training is False
    np.testing.assert_array_equal(net(x).array, x.array)
    assert (net.train()(x).array == 0).any()


def test_transient_buffers_stay_out_of_the_state():
    net = nn.Module()
    net.register_buffer("kept", minidl.ones(2))
    net.register_buffer("scratch", minidl.ones(2), persistent=False)
    assert list(net.state_dict()) == ["kept"]
    assert [n for n, _ in net.named_buffers()] == ["kept", "scratch"]


def test_hooks_see_and_replace_inputs_and_outputs_until_removed():
    net = nn.Linear(2, 2)
    seen = []
    remove = net.register_forward_pre_hook(lambda m, inputs: (inputs[0] * 0,))
    net.register_forward_hook(lambda m, inputs, y: seen.append(inputs[0].sum().item()))
    y = net(minidl.ones(1, 2))
    np.testing.assert_array_equal(y.array[0], net.bias.array)
    remove()
    net(minidl.ones(1, 2))
    assert seen == [0.0, 2.0]


def test_reassigning_keeps_one_registration():
    net = Net()
    net.scale = nn.Parameter(np.zeros(2, np.float32))
    assert dict(net.named_parameters())["scale"].shape == (2,)
    with pytest.raises(TypeError, match="scale is a parameter"):
        net.scale = 3.0
    net.first = nn.Identity()
    assert "first.weight" not in dict(net.named_parameters())
    net.scale = nn.Linear(4, 4)  # no longer a parameter, now a module
    assert "scale" not in dict(net.named_parameters())
    del net.scale
    assert not hasattr(net, "scale")


def test_assignment_before_super_init_says_so():
    class Bad(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(2, 2)

    with pytest.raises(AttributeError, match="must call super"):
        Bad()


def test_casts_change_floating_state_only():
    net = Net().half()
    assert net.first.weight.dtype == np.float16
    assert net.second[2].running_mean.dtype == np.float16
    assert net.second[2].num_batches_tracked.dtype == np.int64
    assert net.double().first.weight.dtype == np.float64


def test_a_cast_forgets_the_gradients_of_the_old_dtype():
    net = Net()
    net(minidl.ones(2, 3)).sum().backward()
    assert all(p.grad is None for p in net.double().parameters())


def test_zero_grad_and_requires_grad_():
    net = Net()
    net(minidl.ones(2, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.requires_grad_(False)
    assert not net(minidl.ones(2, 3)).requires_grad


def test_what_ranks_share_of_a_parameter_is_declared_by_name():
    p = nn.Parameter(minidl.ones(3))
    p.declare(copies=2, is_local=True)
    assert (p.copies, p.is_local, p.sharded_by) == (2, True, ())
    with pytest.raises(TypeError, match="wanted one of the keywords sharded_by, .*; got shard"):
        p.declare(shard=1)


def test_a_deep_copy_of_a_model_has_no_gradients_and_no_hooks():
    tied = nn.Linear(2, 2)
    model = nn.Sequential(tied, nn.BatchNorm1d(2), tied)
    fired = []
    model[0].weight.on_grad_ready(fired.append)
    ranks = object()
    model[0].weight.declare(sharded_by=(ranks,), copies=2, compressed_by=ranks)
    model(minidl.ones(3, 2)).sum().backward()
    assert len(fired) == 1
    twin = copy.deepcopy(model)
    assert all(p.grad is None for p in twin.parameters())
    assert all(p.grad is not None for p in model.parameters())
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert np.array_equal(p.array, q.array) and not np.shares_memory(p.array, q.array), name
    weight = twin[0].weight
    assert weight is twin[2].weight and type(weight) is nn.Parameter
    assert (weight.sharded_by, weight.copies, weight.compressed_by) == ((ranks,), 2, None)
    twin(minidl.ones(3, 2)).sum().backward()
    assert len(fired) == 1 and weight.grad is not None


def test_copies_of_tensors_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")

    def copies(lib):
        leaf = lib.tensor([1.0, 2.0], requires_grad=True)
        weight = lib.nn.Parameter(lib.tensor([3.0]))
        (leaf.sum() * weight.sum()).backward()
        found = []
        for make in copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x)):
            for x in leaf, weight:
                twin = make(x)
                found.append((np.asarray(twin.detach()).tolist(), twin.requires_grad, twin.is_leaf,
                              None if twin.grad is None else np.asarray(twin.grad).tolist(),
                              type(twin) is type(x)))
        with pytest.raises(RuntimeError, match="deepcopy"):
            copy.deepcopy(leaf * 2)
        return found

    assert copies(minidl) == copies(torch)


def test_a_hook_is_removed_by_its_handle_and_twice_is_once():
    layer, seen = nn.Linear(2, 2), []
    handles = [layer.register_forward_hook(lambda *a: seen.append("after")),
               layer.register_forward_pre_hook(lambda *a: seen.append("before")),
               layer.weight.on_grad_ready(lambda leaf: seen.append("grad"))]
    layer(minidl.ones(1, 2)).sum().backward()
    for handle in handles:
        handle.remove()
        handle()
    layer(minidl.ones(1, 2)).sum().backward()
    assert seen == ["before", "after", "grad"]


def test_load_state_dict_names_what_it_found():
    layer = nn.Linear(2, 2)
    found = layer.load_state_dict({"weight": np.ones((2, 2)), "more": np.ones(1)}, strict=False)
    assert found.missing_keys == ["bias"] and found.unexpected_keys == ["more"]
    assert found == (["bias"], ["more"])


@ranks(2, 3)
def test_a_deep_copy_of_a_divided_model_lies_on_the_same_ranks(t):
    minidl.manual_seed(0)
    model = expert_parallel(nn.Sequential(nn.Linear(4, 4), nn.MoE(4, n_experts=3)), t)
    twin = copy.deepcopy(model)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p is not q and p.sharded_by == q.sharded_by and p.copies == q.copies
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(twin(x).array, model(x).array)


@pytest.mark.parametrize("wants", [(True, True), (False, False)])
def test_a_backward_hook_sees_what_pytorchs_sees(wants):
    torch = pytest.importorskip("torch", reason="the oracle")

    def seen(lib):
        class Both(lib.nn.Module):
            def forward(self, a, b):
                return a * b, a + 2 * b

        module, found = Both(), []
        module.register_full_backward_hook(lambda module, gx, gy: found.append(
            [[None if g is None else g.tolist() for g in part] for part in (gx, gy)]))
        w = lib.tensor([1.0, 2.0], requires_grad=True)
        a, b = (lib.tensor([3.0, 4.0], requires_grad=flag) for flag in wants)
        x, y = module(a, b)
        (w * (x + 3 * y) + a).sum().backward()  # a is used outside of the module, too
        return found

    ours, theirs = seen(minidl), seen(torch)
    if any(wants):
        assert ours == theirs and len(ours) == 1
    else:
        assert ours == []  # no output wants a gradient: there is no backward through the module


def test_a_backward_hook_sees_none_for_an_input_without_a_gradient():
    module, seen = nn.MSELoss(), []
    module.register_full_backward_hook(lambda module, gx, gy: seen.append(gx))
    module(minidl.ones(2, requires_grad=True), minidl.zeros(2)).backward()
    (gradients,) = seen
    assert gradients[0].tolist() == [1, 1] and gradients[1] is None  # PyTorch makes zeros of it


def test_what_a_backward_hook_returns_takes_the_gradients_place():
    module = nn.Identity()
    handle = module.register_full_backward_hook(lambda module, gx, gy: (gx[0] * 10,))
    x = minidl.tensor([1.0, 2.0], requires_grad=True)
    (module(x) * x).sum().backward()  # 10 x through the module, x around it
    assert x.grad.tolist() == [11, 22]
    handle.remove()
    assert module._backward_hooks == []

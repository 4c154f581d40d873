"""Containers register what they hold, in order; modules are found by dotted names."""

import numpy as np
import pytest

import minidl
from minidl import nn


def test_a_dict_registers_its_modules_in_order():
    heads = nn.ModuleDict({"b": nn.Linear(2, 2, bias=False), "a": nn.ReLU()})
    heads["c"] = nn.Linear(2, 1, bias=False)
    assert list(heads) == ["b", "a", "c"] and len(heads) == 3 and "a" in heads
    assert list(heads.state_dict()) == ["b.weight", "c.weight"]
    assert [type(m).__name__ for m in heads.values()] == ["Linear", "ReLU", "Linear"]
    assert heads.pop("a").__class__ is nn.ReLU and [k for k, _ in heads.items()] == ["b", "c"]
    del heads["b"]
    assert list(heads.keys()) == ["c"]
    for name in ("x.y", "", "training"):
        with pytest.raises(KeyError, match="has no dot, is not empty, and is not an attribute"):
            heads[name] = nn.ReLU()


def test_a_list_of_parameters():
    scales = nn.ParameterList([minidl.ones(2), np.zeros(3, "f4")]).append(minidl.ones(1))
    assert [p.shape for p in scales] == [(2,), (3,), (1,)] and len(scales) == 3
    assert all(isinstance(p, nn.Parameter) for p in scales.parameters())
    assert list(scales.state_dict()) == ["0", "1", "2"] and scales[-1] is scales[2]
    scales[1] = minidl.ones(4)
    assert scales[1].shape == (4,) and len(scales[1:]) == 2


def test_a_dict_of_parameters():
    scales = nn.ParameterDict({"left": minidl.ones(2), "right": np.zeros(3, "f4")})
    assert list(scales) == list(scales.keys()) == ["left", "right"] and len(scales) == 2
    assert all(isinstance(p, nn.Parameter) for p in scales.values())
    assert list(scales.state_dict()) == ["left", "right"]
    scales["left"] = minidl.ones(4)
    assert "left" in scales and scales["left"].shape == (4,)
    assert scales.pop("left").shape == (4,)
    del scales["right"]
    assert not list(scales.parameters()) and not list(scales.items())


def test_names_and_state_equal_pytorchs():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    nets = []
    for library in (nn, torch.nn):
        net = library.Module()
        net.add_module("heads", library.ModuleDict({"left": library.Linear(2, 3)}))
        net.scales = library.ParameterList([library.Parameter(
            torch.zeros(2) if library is torch.nn else np.zeros(2, "f4"))])
        nets.append(net)
    assert list(nets[0].state_dict()) == list(nets[1].state_dict())


def test_a_module_is_found_by_its_dotted_name():
    net = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"inner": nn.Linear(2, 1)}))
    assert net.get_submodule("1.inner") is net[1]["inner"] and net.get_submodule("") is net
    assert net.get_parameter("1.inner.bias") is net[1]["inner"].bias
    with pytest.raises(AttributeError, match=r"1 has no module 'outer'; it has \['inner'\]"):
        net.get_submodule("1.outer")
    with pytest.raises(AttributeError, match="0 has no parameter 'scale'; it has"):
        net.get_parameter("0.scale")
    net.add_module("norm", nn.BatchNorm1d(2))
    assert net.get_buffer("norm.running_mean") is net.norm.running_mean
    with pytest.raises(AttributeError, match=r"norm has no buffer 'weight'; it has \['running"):
        net.get_buffer("norm.weight")


def test_add_module_wants_a_module():
    with pytest.raises(TypeError, match="'x' wants a Module, got int"):
        nn.Module().add_module("x", 3)

"""Optimizer: parameter groups, a state for each parameter, and a step that each subclass defines.

A group is a dict {"params": [...], "lr": ..., ...}. Options may differ between groups. The state of
a parameter is a dict. `state_dict` numbers the parameters in order, as PyTorch does. If a 2-byte
parameter has a float32 master copy (master.py), the optimizer updates that copy.
Test: tests/optim/test_optimizer.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.backend import is_bfloat16, overwrite, to_device
from minidl.backward import clear_gradient
from minidl.cuda import dispatch
from minidl.mode import enable_grad, no_grad
from minidl.optim import master, over_ranks
from minidl.precision import bf16
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from minidl.hints import Parameters

# A state that PyTorch saved can have options that minidl's optimizer does not know. The options in
# PYTORCH_FORMS only choose how PyTorch computes, so minidl ignores them. minidl ignores an option
# in PYTORCH_OPTIONS if it is False.
PYTORCH_FORMS = {"foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
PYTORCH_OPTIONS = {"amsgrad", "maximize"}
# Numbers that schedules keep in a group, as PyTorch's schedules do.
SCHEDULED = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")


def wants_optimizer(who, got):
    """Returns `got`. Raises TypeError if `got` is not an optimizer. who: the caller's name, for the
    error."""
    if not hasattr(got, "param_groups"):
        raise TypeError(f"{who} wants an optimizer, such as optim.SGD(); got {type(got).__name__}")
    return got


class Optimizer:
    """The base class of all optimizers.

    params: an iterable of Tensors, or of groups. A group is a dict {"params": [...], option: value,
        ...}.
    defaults: {option: value} for groups that do not set the option."""

    def __init__(self, params: Parameters, defaults: dict[str, Any]):
        self.defaults, self.state, self.param_groups = defaults, {}, []
        self.low = {}  # master weight -> the 2-byte parameter that is its rounded copy
        self.seen = {}  # master weight -> version of its parameter after the optimizer's last write
        if hasattr(params, "parameters"):
            raise TypeError(f"{type(self).__name__} wants a module's .parameters(); got the module")
        params = list(params)
        if not params:
            raise ValueError(f"{type(self).__name__} got no parameters")
        for group in params if isinstance(params[0], dict) else [{"params": params}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        group = {**self.defaults, **param_group}
        params = group["params"]
        if isinstance(params, (set, frozenset)):
            raise TypeError("an optimizer gives each parameter a number, but a set has no order; "
                            "pass a list")
        group["params"] = [params] if isinstance(params, Tensor) else list(params)
        known = set(self.parameters())
        unknown = set(group) - {"params", "name", *SCHEDULED} - set(self.defaults)
        if unknown:
            raise ValueError(f"{type(self).__name__} has no option {sorted(unknown)}; "
                             f"it has {sorted(self.defaults)}")
        for p in group["params"]:
            if not isinstance(p, Tensor) or not p.is_leaf:
                got = f"the result of {p.grad_fn}" if isinstance(p, Tensor) else type(p).__name__
                raise TypeError(f"an optimizer takes leaf Tensors; got {got}")
            if p in known:
                raise ValueError(f"a parameter of shape {tuple(p.shape)} is in two groups, or "
                                 "twice in one group")
            known.add(p)
        self.param_groups.append(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters: each gradient becomes None. With
        set_to_none=False it is filled with zeros instead."""
        for p in self.parameters():
            for t in {p, self.low.get(p, p)}:
                clear_gradient(t, set_to_none)

    def step(self, closure: Callable[[], Any] | None = None, *, unscale: Any = 1.0,
             skip: Any = None) -> Any:
        """Updates every parameter that has a gradient, in place.

        closure: a function that computes the loss, calls backward and returns the loss. step()
            calls it first, and returns its result. Without a closure, step() returns None.
        unscale: a factor for the gradients, such as 1 / loss scale.
        skip: a number, or None. If it is not 0, no parameter changes.

        For parameters on a GPU, unscale and skip may be arrays of one number on the GPU (float32
        and int32). Then the host does not wait for the GPU."""
        loss = None if closure is None else called(closure)
        late = () if skip is None else (skip,)
        with no_grad():
            for group in self.param_groups:
                first = group["params"][0] if group["params"] else None
                if (model := getattr(self.low.get(first, first), "compressed_by", None)):
                    model.check_optimizer(self, group)
                sign = -1.0 if group.get("maximize") else 1.0  # -1: the step makes the loss larger
                params = [p for p in group["params"] if self.gradient(p) is not None]
                low = [p for p in params if p in self.low]
                master.take_changes(self, low)
                for part in ([p for p in params if p not in self.low], low):
                    if part:
                        grads = [self.gradient(p) for p in part]
                        self.update_group(part, grads, group, sign * unscale, *late)
                for p in params:
                    p.version += 1
                master.stepped(self, low)
        return loss

    def update_group(self, params, grads, group, unscale, skip=None):
        """Updates some parameters of a group, one by one. Either all these parameters are master
        copies, or none of them is. A subclass with a fused kernel updates all these parameters in
        one launch."""
        if skip is not None and bool(skip):  # on a GPU, bool() makes the host wait
            return
        for p, g in zip(params, grads, strict=True):
            g = g.astype(np.float32) if p in self.low else bf16.widen(g)
            g = unscaled(g, unscale)
            state = self.state.setdefault(p, {})
            if is_bfloat16(p.dtype):
                self.update_bfloat16(p, g, state, group)
            else:
                self.update(p, g, state, group)
            self.write_low([p])

    def update_bfloat16(self, p, grad, state, group):
        """Updates a bfloat16 parameter that has no master copy. Computes in float32, then rounds
        the weight and its state. Updates below half a unit in the last place are lost
        (master.py)."""
        wide = Tensor(bf16.widen(p.array))
        work = {name: bf16.widen(value) for name, value in state.items()}
        self.update(wide, grad, work, group)
        p.array[...] = wide.array
        state.update((name, value.astype(p.dtype) if hasattr(value, "dtype") else value)
                     for name, value in work.items())

    def write_low(self, params):
        """Copies master weights, rounded, into their 2-byte parameters."""
        for p in params:
            if p in self.low:
                self.low[p].array[...] = p.array

    def leaf_of(self, p):
        """Returns the model's parameter for p: the 2-byte parameter if p is a master weight, else
        p."""
        return self.low.get(p, p)

    @property
    def sharded_by(self):
        """A tuple of groups of ranks. The optimizers of these ranks hold the other shards of the
        parameters (over_ranks.py)."""
        return over_ranks.groups_of(map(self.leaf_of, self.parameters()))

    @property
    def compressed_by(self):
        """The parallel.Compressed model that sends the gradients of these parameters, or None."""
        models = (getattr(self.leaf_of(p), "compressed_by", None) for p in self.parameters())
        return next((model for model in models if model is not None), None)

    def refresh(self):
        """Notes that each 2-byte parameter has the values of its master weight. Call it after the
        masters and the parameters were overwritten."""
        self.seen = {p: low.version for p, low in self.low.items()}

    def gradient(self, p):
        """Returns the gradient array of p, or None. If p is a master weight, returns its unscaled
        gradient if there is one, else the gradient of the 2-byte parameter."""
        grad = p.grad if p.grad is not None or p not in self.low else self.low[p].grad
        return None if grad is None else grad.array

    def gradients(self):
        """Returns a list of all gradient arrays. Parameters without a gradient are left out."""
        return [g for p in self.parameters() if (g := self.gradient(p)) is not None]

    def update(self, p, grad, state, group):
        """Does one step of one parameter: changes p.array in place. A subclass writes this method.
        grad: the gradient array of p. state: the dict of p, in which the method stores what the
        next step needs. group: the options."""
        raise NotImplementedError(f"{type(self).__name__} must define the method update()")

    def state_dict(self) -> dict[str, Any]:
        """Returns {"state": {index: {name: Tensor or number}}, "param_groups": [...]}, as PyTorch
        does. If a parameter has a master weight, its state also has "master". The tensors are not
        copies: they share the optimizer's memory."""
        index = {p: i for i, p in enumerate(self.parameters())}
        groups = [{**g, "params": [index[p] for p in g["params"]]} for g in self.param_groups]
        state = {}
        for p, i in index.items():
            values = dict(self.state.get(p, {}))
            if p in self.low:
                values["master"] = p.array
            if p in self.state or p in self.low:
                state[i] = {k: tensor_of(_plain(k, v)) for k, v in values.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copies a state into this optimizer. The state may come from PyTorch, and may be on any
        device. Raises ValueError if the state is of another kind of optimizer, or if groups or
        shapes differ. After an error nothing has changed."""
        params = self.parameters()
        sizes = [len(g["params"]) for g in self.param_groups]
        given = [len(g["params"]) for g in state_dict["param_groups"]]
        if sizes != given:
            raise ValueError(f"load_state_dict: the groups of this optimizer have {sizes} "
                             f"parameters, but the groups of the state have {given}")
        for group in state_dict["param_groups"]:
            self._check_options(group)
        loaded, masters = {}, {}
        for i, state in state_dict["state"].items():
            p = params[int(i)]
            state = {k: _plain(k, backend.plain_array(v)) for k, v in state.items()}
            for name, value in state.items():
                if hasattr(value, "shape") and tuple(value.shape) != p.shape:
                    raise ValueError(f"load_state_dict: {name} of parameter {i} wants the shape "
                                     f"of the parameter, {tuple(p.shape)}; got "
                                     f"{tuple(value.shape)}")
            if ("master" in state) != (p in self.low):
                fault = ("a master copy here, but none in the state" if p in self.low else
                         "a master copy in the state, but none here; first call "
                         "optim.use_master_weights(optimizer)")
                raise ValueError(f"load_state_dict: parameter {i} has {fault}")
            loaded[p] = {k: copy_on_device_of(v, p) for k, v in state.items() if k != "master"}
            if p in self.low:
                masters[p] = state["master"]
        self.state = {p: state for p, state in loaded.items() if state}
        for p, array in masters.items():
            overwrite(p.array, array)
        self.write_low(masters)
        self.refresh()
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            known = (*self.defaults, *SCHEDULED)
            group.update({k: v for k, v in saved.items() if k in known})

    def _check_options(self, group):
        """Raises ValueError if the group has options that this kind of optimizer does not have."""
        strange = sorted(k for k, value in group.items() if k not in
                         {"params", "name", *SCHEDULED, *self.defaults, *PYTORCH_FORMS}
                         and not (value is False and k in PYTORCH_OPTIONS))
        if strange:
            raise ValueError(f"load_state_dict: {type(self).__name__} has no option {strange}; it "
                             f"has {sorted(self.defaults)}. Is this another optimizer's state?")

    def parameters(self) -> list[Tensor]:
        """Returns the tensors that step() updates, in order. If a parameter has a master weight,
        the list has the master weight in its place."""
        return [p for g in self.param_groups for p in g["params"]]


def tensor_of(value):
    """Returns a Tensor that shares the memory of `value`. If `value` is a number, returns it."""
    return Tensor(value) if hasattr(value, "strides") else value


def copy_on_device_of(value, p):
    """Returns a copy of the array `value` on the device of p. If `value` is a number, returns
    it."""
    return to_device(value, p.device).copy() if hasattr(value, "ndim") else value


def fusable(params, grads, *kernels):
    """Returns True if kernels can update the parameters. The parameters must be float32. The
    gradients must be all float32 or all float16 (bfloat16 has no kernel). All arrays must be
    contiguous. It must be possible to launch all `kernels`. Call this function before the first
    kernel changes a state.

    kernels: tuples (file, name, dtype, macros to define). If the dtype is None, the dtype of the
    gradients is used."""
    arrays = [*(p.array for p in params), *grads]
    if not (dispatch.usable(*arrays[:len(params)]) and dispatch.usable(*grads)
            and all(p.dtype == np.float32 for p in params)
            and all(a.flags.c_contiguous for a in arrays)):
        return False
    on_gpu = not isinstance(grads[0], np.ndarray)
    return on_gpu or all(dispatch.can_launch(file, name, dtype or grads[0].dtype, **defines)
                         for file, name, dtype, defines in kernels)


def low_arrays(low, params, grads):
    """Returns the list of 2-byte parameter arrays that the kernel must write in addition to the
    master weights. Returns None if the parameters have no master weights, or if the kernel cannot
    write these arrays. The kernel needs contiguous arrays, and each gradient must have the dtype of
    its parameter. (After unscaling, a gradient may be float32.)"""
    arrays = [low[p].array for p in params if p in low]
    usable = len(arrays) == len(params) and all(
        a.dtype == g.dtype and a.flags.c_contiguous for a, g in zip(arrays, grads, strict=True))
    return arrays if usable else None


def unscaled(g, unscale):
    """Returns the gradient g times the factor `unscale`, in the dtype of g. unscale: a number, or
    an array of one number on the GPU."""
    if hasattr(unscale, "dtype"):
        return g * unscale.astype(g.dtype)
    return g if unscale == 1.0 else g * g.dtype.type(unscale)


def late(unscale):
    """Returns two factors for the gradients: a number for the host, and an array on the GPU. If
    `unscale` is an array, the number is 1. Otherwise the array is None."""
    return (1.0, unscale) if hasattr(unscale, "dtype") else (unscale, None)


def _plain(name, value):
    """Returns `value` as an int if `name` is "step". (On a GPU, and in PyTorch, the step count is
    an array.) Returns other values unchanged. The function must look at the name, because the size
    does not show which array is the step count. If the parameter has no dimensions, all arrays of
    the state have one element."""
    return int(value) if name == "step" else value


def called(closure):
    """Calls closure() and returns its result. The graph is recorded during the call. Raises
    TypeError if closure is not a function."""
    if not callable(closure):
        raise TypeError(f"step(closure): wanted a function that computes the loss and calls "
                        f"backward; got {type(closure).__name__}. To pass a factor for the "
                        "gradients, write step(unscale=...)")
    with enable_grad():
        return closure()

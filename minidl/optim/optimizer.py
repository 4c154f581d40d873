"""Optimizer: parameter groups, per-parameter state, and a step that each subclass defines.

A group is a dict {"params": [...], "lr": ..., ...}: options may differ between groups. State is one
dict per parameter. `state_dict` numbers the parameters in order, as PyTorch does.

Test: tests/optim/test_optimizer.py
"""

import numpy as np

from minidl.backward import no_grad
from minidl.fused import dispatch
from minidl.tensor import Tensor


class Optimizer:
    """params: an iterable of Tensors, or of dicts {"params": [...], option: value, ...}."""

    def __init__(self, params, defaults):
        self.defaults = defaults
        self.state = {}
        self.param_groups = []
        params = list(params)
        if not params:
            raise ValueError(f"{type(self).__name__} got no parameters")
        for group in params if isinstance(params[0], dict) else [{"params": params}]:
            self.add_param_group(group)

    def add_param_group(self, group):
        group = {**self.defaults, **group}
        group["params"] = [group["params"]] if isinstance(group["params"], Tensor) else \
            list(group["params"])
        known = {p for g in self.param_groups for p in g["params"]}
        unknown = set(group) - {"params", "initial_lr"} - set(self.defaults)
        if unknown:
            raise ValueError(f"{type(self).__name__} has no option {sorted(unknown)}; "
                             f"it has {sorted(self.defaults)}")
        for p in group["params"]:
            if not isinstance(p, Tensor) or not p.is_leaf:
                raise TypeError("an optimizer takes leaf Tensors; got "
                                + (f"the result of {p.grad_fn}" if isinstance(p, Tensor)
                                   else type(p).__name__))
            if p in known:
                raise ValueError(
                    f"a parameter of shape {p.shape} is in two groups, or twice in one")
            known.add(p)
        self.param_groups.append(group)

    def zero_grad(self, set_to_none=True):
        """Forget the gradients; set_to_none=False keeps the arrays and fills them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad[...] = 0

    def step(self):
        """Update every parameter that has a gradient, in place."""
        with no_grad():
            for group in self.param_groups:
                params = [p for p in group["params"] if p.grad is not None]
                self.update_group(params, group)
                for p in params:
                    p.version += 1

    def update_group(self, params, group):
        """Update the parameters of one group: one by one, unless a subclass has a fused kernel
        that takes them all at once."""
        for p in params:
            self.update(p, p.grad, self.state.setdefault(p, {}), group)

    def update(self, p, grad, state, group):
        """Change p.data in place, given its gradient array; keep what is needed in `state`."""
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def state_dict(self):
        """{"state": {index: {name: array or number}}, "param_groups": [...]}, PyTorch's layout.
        The arrays are the live ones."""
        index = {p: i for i, p in enumerate(self._params())}
        groups = [{**g, "params": [index[p] for p in g["params"]]} for g in self.param_groups]
        return {"state": {index[p]: dict(s) for p, s in self.state.items()},
                "param_groups": groups}

    def load_state_dict(self, state_dict):
        """Copy a state in; ValueError if groups or shapes differ, and then nothing has changed."""
        params = self._params()
        sizes = [len(g["params"]) for g in self.param_groups]
        given = [len(g["params"]) for g in state_dict["param_groups"]]
        if sizes != given:
            raise ValueError(f"load_state_dict: this optimizer has groups of {sizes} parameters, "
                             f"the state has {given}")
        loaded = {}
        for i, state in state_dict["state"].items():
            p = params[int(i)]
            for name, value in state.items():
                if getattr(value, "ndim", 0) and tuple(value.shape) != p.shape:
                    raise ValueError(f"load_state_dict: {name} of parameter {i} has shape "
                                     f"{tuple(value.shape)}, the parameter {p.shape}")
            loaded[p] = {k: _copy(v) for k, v in state.items()}
        self.state = loaded
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            group.update({k: v for k, v in saved.items() if k != "params"})

    def _params(self):
        return [p for g in self.param_groups for p in g["params"]]


def fusable(params):
    """Whether a fused kernel may update these: float32, contiguous, and a kernel can run at all."""
    arrays = [a for p in params for a in (p.data, p.grad)]
    return dispatch.usable(*arrays) and all(
        a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)


def _copy(value):
    if not hasattr(value, "ndim"):
        return value
    return np.asarray(value).item() if value.ndim == 0 else value.copy()

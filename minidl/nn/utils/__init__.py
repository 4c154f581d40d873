"""PyTorch's `torch.nn.utils`: parameters as one vector, and clipping. rnn.py pads sequences.

Test: tests/nn/test_utils.py
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from minidl.mode import no_grad
from minidl.nn.utils import rnn
from minidl.ops.shape import cat, reshape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minidl.optim.clip import clip_grad_norm_, clip_grad_value_
    from minidl.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "parameters_to_vector", "rnn",
           "vector_to_parameters"]
CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Returns all parameters as one vector, (n_elements,). The result is recorded in the graph."""
    return cat([reshape(p, (-1,)) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copies a vector into the parameters, in order. Raises ValueError if the sizes differ."""
    parameters = list(parameters)
    wanted = sum(p.numel() for p in parameters)
    if vec.ndim != 1 or vec.numel() != wanted:
        raise ValueError(f"vector_to_parameters wants a vector with the {wanted} elements of the "
                         f"parameters; got shape {tuple(vec.shape)}")
    start = 0
    with no_grad():
        for p in parameters:
            p.copy_(reshape(vec[start:start + p.numel()], p.shape))
            start += p.numel()


def __getattr__(name):
    if name in CLIPPING:  # imported on first use, because nn must not import optim
        return getattr(import_module("minidl.optim.clip"), name)
    raise AttributeError(f"module 'minidl.nn.utils' has no attribute {name!r}")

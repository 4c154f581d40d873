"""The types of arguments, each with a short name, for editors and type checkers.

    def linear(input: Array, weight: Array) -> Tensor

A module imports these names below `if TYPE_CHECKING:`. An editor reads such a block. A running
program skips it, so hints cost no time.

Test: tests/test_hints.py
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from minidl.comm.transport.background import Job
from minidl.tensor import Tensor

Array = Tensor | np.ndarray  # a Tensor or an array
Number = Tensor | np.ndarray | np.generic | float  # a Tensor, an array, or one number
Sizes = int | Sequence[int]  # one size for each dimension, or one size for all dimensions
DType = DTypeLike  # np.float32, "float16", minidl.bfloat16
Device = str | int  # "cpu", "cuda", "cuda:1", 1
Parameters = Iterable[Tensor] | Iterable[dict[str, Any]]  # an optimizer's parameters, or its groups

Counts = Sequence[int] | np.ndarray  # one integer for each rank: its count, or its first index
PerGroup = float | Sequence[float]  # one number for each group of an optimizer, or one for all
# A function (step) -> factor for each group of an optimizer, or one function for all groups.
Factors = Callable[[int], float] | Sequence[Callable[[int], float]]
Nodes = int | Sequence[Sequence[int]]  # ranks per node, or the list of ranks of each node
Op = Callable[..., Any]  # np.add or np.maximum, called as op(a, b, out=a)
Result = TypeVar("Result")  # the result of a function that the user passes

# A collective returns a Tensor for a Tensor, and an array for an array.
SameArray = TypeVar("SameArray", bound=Tensor | np.ndarray)


class HasGroups(Protocol):
    """An optimizer, or an object that wraps an optimizer. A schedule changes its groups."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        ...


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class HasForward(Protocol[P, R_co]):
    """A module. A call takes the arguments of its forward, and returns the result of forward."""

    def forward(self, *inputs: P.args, **options: P.kwargs) -> R_co:
        ...


class Collective(Protocol[P, R_co]):
    """A collective. With wait=False it runs in the background and returns a Job immediately."""

    @typing.overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> R_co:
        ...

    @typing.overload
    def __call__(self, *args: Any, wait: Literal[False], **options: Any) -> Job:
        ...


class Fused(Protocol):
    """The result of minidl.fuse: a function. `source` is the CUDA text of its kernels."""

    source: str

    def __call__(self, *inputs: Any) -> Tensor:
        ...


class AsCollective(Protocol):
    """A decorator that turns a function into a collective."""

    def __call__(self, fn: Callable[P, R_co]) -> Collective[P, R_co]:
        ...

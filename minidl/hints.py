"""The types of arguments, each with a short name, for editors and type checkers.

    def linear(input: Array, weight: Array) -> Tensor

A module imports these names below `if TYPE_CHECKING:`. An editor reads that, a program skips it.
So no program loads this file, and hints cost no time.

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

Array = Tensor | np.ndarray  # a Tensor, or an array in its place
Number = Tensor | np.ndarray | np.generic | float  # ... or one number for all elements
Sizes = int | Sequence[int]  # one size for each dimension, or the same for all
DType = DTypeLike  # np.float32, "float16", minidl.bfloat16
Device = str | int  # "cpu", "cuda", "cuda:1", 1
Parameters = Iterable[Tensor] | Iterable[dict[str, Any]]  # of an optimizer: tensors, or groups

Counts = Sequence[int] | np.ndarray  # of ranks: how much each has, or where its part begins
PerGroup = float | Sequence[float]  # one number for each group of an optimizer, or for all
Factors = Callable[[int], float] | Sequence[Callable[[int], float]]  # step -> factor, the same
Nodes = int | Sequence[Sequence[int]]  # ranks of each node, or how many ranks a node has
Op = Callable[..., Any]  # np.add, np.maximum: op(a, b, out=a)
Result = TypeVar("Result")  # what a function of yours returns

# A collective returns a Tensor for a Tensor, and an array for an array.
SameArray = TypeVar("SameArray", bound=Tensor | np.ndarray)


class HasGroups(Protocol):
    """An optimizer, or what stands around one: a schedule changes its groups."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        ...


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class HasForward(Protocol[P, R_co]):
    """A module. A call takes what its forward takes, and returns what its forward returns."""

    def forward(self, *inputs: P.args, **options: P.kwargs) -> R_co:
        ...


class Collective(Protocol[P, R_co]):
    """A collective. With wait=False it begins in the background."""

    @typing.overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> R_co:
        ...

    @typing.overload
    def __call__(self, *args: Any, wait: Literal[False], **options: Any) -> Job:
        ...


class Fused(Protocol):
    """What minidl.fuse returns: a function, and the text of its kernels."""

    source: str

    def __call__(self, *inputs: Any) -> Tensor:
        ...


class AsCollective(Protocol):
    """Makes a function a collective."""

    def __call__(self, fn: Callable[P, R_co]) -> Collective[P, R_co]:
        ...

"""A moving average of the weights. Evaluate the average: it has less noise than the last weights.

    before the first step  a = w          after each step  a = a + (1 - decay) (w - a)

    ema = optim.EMA(model.parameters(), decay=0.999)
    for ...: optimizer.step(); ema.update()
    with ema.averaged():             in this block the parameters have the averaged values
        evaluate(model)

With decay 0.999 the average covers about the last thousand steps. With `warmup` the decay at step t
is at most (1 + t) / (10 + t). So the random weights from before the first step soon have only a
small share in the average.
Source: Polyak & Juditsky 1992 (averaging).      Test: tests/optim/test_ema.py
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from minidl.backend import accumulate_dtype
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


class EMA:
    """Holds one average array for each parameter. `step` counts the updates.

    The averages of 2-byte weights are float32. One update changes an average only by (1 - decay)
    times the difference between the weight and the average. In a 2-byte number this change is often
    less than half a unit in the last place, so rounding removes it."""

    def __init__(self, params: Iterable[Tensor], decay: float = 0.999, warmup: bool = False):
        if not 0 <= decay < 1:
            raise ValueError(f"EMA: decay must be in [0, 1), got {decay}")
        self.params = [params] if isinstance(params, Tensor) else list(params)
        if not self.params:
            raise ValueError("EMA got no parameters")
        self.decay, self.warmup, self.step = decay, warmup, 0
        self.averages = [p.array.astype(accumulate_dtype(p.dtype), copy=True)
                         for p in self.params]

    def update(self) -> None:
        """Moves each average towards the current weight, by 1 - decay times the difference between
        weight and average. Call this method after optimizer.step()."""
        self.step += 1
        decay = self.decay
        if self.warmup:
            decay = min(decay, (1 + self.step) / (10 + self.step))
        for a, p in zip(self.averages, self.params, strict=True):
            a += (1 - decay) * (p.array - a)

    @contextmanager
    def averaged(self):
        """Returns an object for a `with` block. In the block the parameters have the averaged
        values. After the block they have their own values again."""
        own = [p.array.copy() for p in self.params]
        self._overwrite(self.averages)
        try:
            yield
        finally:
            self._overwrite(own)

    def _overwrite(self, values):
        for p, value in zip(self.params, values, strict=True):
            p.array[...] = value
            p.version += 1

    def state_dict(self) -> dict[str, Any]:
        """Returns {"step": n, "averages": {index: array}}. The arrays are not copied."""
        return {"step": self.step, "averages": dict(enumerate(self.averages))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        given = {int(i): a for i, a in state["averages"].items()}
        shapes = [tuple(given[i].shape) if i in given else None for i in range(len(self.averages))]
        if shapes != [a.shape for a in self.averages] or len(given) != len(self.averages):
            raise ValueError(f"load_state_dict wants averages of the shapes "
                             f"{[a.shape for a in self.averages]}; got {shapes}")
        self.step = int(state["step"])
        for i, a in given.items():
            self.averages[i][...] = a

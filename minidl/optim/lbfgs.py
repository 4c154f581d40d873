"""L-BFGS: Newton's step, with the curvature estimated from the latest steps and gradients.

    s_i = w_(i+1) - w_i,  y_i = g_(i+1) - g_i      the latest `history_size` pairs are kept
    d = -H g                                       two loops over the pairs; H is never stored
    w = w + t d                                    t = lr; at the first step lr min(1, 1 / |g|_1)

Use L-BFGS for small problems without noise: each step calls the closure up to max_iter times. There
is no line search, so lr must limit the step.
Source: Nocedal 1980; Nocedal & Wright, "Numerical Optimization" (2006), algorithm 7.4.
Test: tests/optim/test_lbfgs.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidl.optim.optimizer import Optimizer, called

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from minidl.hints import Parameters


class LBFGS(Optimizer):
    """The L-BFGS optimizer. It takes one parameter group. Each rank must hold the complete
    parameters, not shards. state_dict() does not contain the pairs (s, y), so the history is empty
    after load_state_dict."""

    def __init__(self, params: Parameters, lr: float = 1, max_iter: int = 20,
                 max_eval: int | None = None, tolerance_grad: float = 1e-7,
                 tolerance_change: float = 1e-9, history_size: int = 100,
                 line_search_fn: str | None = None):
        if line_search_fn is not None:
            raise ValueError(f"LBFGS has no line search: want line_search_fn=None; got "
                             f"{line_search_fn!r}. If the steps are too long, use an lr below 1")
        max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, dict(
            lr=lr, max_iter=max_iter, max_eval=max_eval, tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change, history_size=history_size))
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS wants one parameter group; got "
                             f"{len(self.param_groups)} groups")
        self.pairs = []  # (s, y, 1 / (s . y)), the oldest first
        self.direction = self.length = self.last_gradient = None

    def step(self, closure: Callable[[], Any]) -> Any:
        """Takes up to max_iter steps. Returns the first loss. closure: a function that clears the
        gradients, computes the loss, calls backward and returns the loss."""
        if self.low or self.sharded_by:
            raise RuntimeError("LBFGS wants whole float32 or float64 parameters; got master "
                               "weights, or shards of several ranks")
        group = self.param_groups[0]
        first_loss = called(closure)
        loss, n_calls = float(first_loss), 1
        g = self._flat_gradient()
        for i in range(group["max_iter"]):
            if not abs(g).max() > group["tolerance_grad"]:
                break
            d = self._next_direction(g)
            if self.last_gradient is None:
                t = min(1.0, 1.0 / float(abs(g).sum())) * group["lr"]
            else:
                t = group["lr"]
            self.direction, self.length, self.last_gradient = d, t, g
            if float(g @ d) > -group["tolerance_change"]:  # the loss does not fall in direction d
                break
            self._move(d, t)
            if i + 1 == group["max_iter"]:
                break
            last_loss = loss
            loss, n_calls = float(called(closure)), n_calls + 1
            g = self._flat_gradient()
            if (n_calls >= group["max_eval"]
                    or float(abs(d * t).max()) <= group["tolerance_change"]
                    or abs(loss - last_loss) < group["tolerance_change"]):
                break
        return first_loss

    def _next_direction(self, g):
        """Returns the direction -H g, which is -g at the first step. Adds the pair (s, y) of the
        latest step to the history, then computes -H g with two loops over the pairs."""
        if self.last_gradient is None:
            return -g
        s, y = self.direction * self.length, g - self.last_gradient
        curvature = float(y @ s)
        if curvature > 1e-10:
            self.pairs.append((s, y, 1 / curvature))
            del self.pairs[:-self.param_groups[0]["history_size"]]
            self.scale = curvature / float(y @ y)
        elif not self.pairs:
            self.scale = 1.0
        q, shares = -g, []
        for s, y, rho in reversed(self.pairs):
            share = rho * float(s @ q)
            q = q - share * y
            shares.append(share)
        q = q * self.scale
        for (s, y, rho), share in zip(self.pairs, reversed(shares)):
            q = q + (share - rho * float(y @ q)) * s
        return q

    def _flat_gradient(self):
        """Returns all gradients as one vector, with zeros for parameters without a gradient."""
        parts = []
        for p in self.parameters():
            g = self.gradient(p)
            parts.append(p._xp.zeros(p.numel(), p.dtype) if g is None else g.reshape(-1))
        return self.parameters()[0]._xp.concatenate(parts)

    def _move(self, d, t):
        """Computes w = w + t d. Each parameter takes its part of the vector d."""
        start = 0
        for p in self.parameters():
            p.array += (t * d[start:start + p.numel()]).reshape(p.array.shape)
            p.version += 1
            start += p.numel()

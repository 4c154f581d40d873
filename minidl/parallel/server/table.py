"""A table of embeddings that grows: rows are made when an id is seen, and removed when it is not.

    id 7741  --> slot 2     weight | z | n | seen        slot 0   ...   arrays double when full, so
    id 12    --> slot 0                                  slot 1   free  a push costs what it touches
    id 903   seen once of 3                              slot 2   ...

Ids are any whole numbers, and more than memory has rows for. An id gets a row when it has come in
`admit` pushes (most come once), and loses it, with its optimizer's state, when no push has had it
for `ttl_s` of event time; both are kept in the order of the last push, so that nothing looks for
what is old. Without a row its weights are the initial ones, a function of seed and id.

    ftrl       z += g - (sqrt(n + g^2) - sqrt(n)) / alpha * w      n += g^2
               w = 0 where |z| <= l1, else (sign(z) l1 - z) / ((beta + sqrt(n)) / alpha + l2)
    adagrad    n += g^2      w -= lr g / (sqrt(n) + eps)

Sources: McMahan et al. 2013 (KDD), FTRL-proximal and admission; Duchi et al. 2011, AdaGrad.
Test: tests/parallel/server/test_table.py   Used by: tables.py, tutorials/train_clicks.py
"""

from collections import OrderedDict
from typing import Callable, NamedTuple

import numpy as np

FIRST = 64  # slots of a new table


class Rows(NamedTuple):
    """How rows are updated. update(w, g, *state): in place, all (rows, dim); state: its names;
    scale: initial weights are uniform in [-scale, scale)."""

    update: Callable
    state: tuple
    scale: float


def ftrl(alpha=0.1, beta=1.0, l1=0.0, l2=0.0):
    """Rows that begin at 0, and stay there while their gradients' sum is small."""

    def update(w, g, z, n):
        root = np.sqrt(n)
        n += g * g
        now = np.sqrt(n)
        z += g - (now - root) / alpha * w
        w[...] = np.where(np.abs(z) <= l1, 0, (np.sign(z) * l1 - z) / ((beta + now) / alpha + l2))

    return Rows(update, ("z", "n"), 0.0)


def adagrad(lr=0.1, eps=1e-10, scale=0.05):

    def update(w, g, n):
        n += g * g
        w -= lr * g / (np.sqrt(n) + eps)

    return Rows(update, ("n",), scale)


class Table:
    """The rows of one server. dim: of a row; rows: ftrl(...) or adagrad(...)."""

    def __init__(self, name, dim, rows=None, admit=1, ttl_s=None, seed=0):
        if dim < 1 or admit < 1 or not isinstance(rows, Rows | None):
            raise ValueError(f"a table wants dim and admit of 1 or more, and rows=adagrad(...) or "
                             f"ftrl(...); got {dim}, {admit}, {rows!r}")
        self.name, self.dim, self.rule, self.seed = name, dim, rows or adagrad(), seed
        self.admit, self.ttl = admit, None if ttl_s is None else round(1000 * ttl_s)
        self.clear()

    def clear(self):
        self.slots = OrderedDict()  # id -> slot, the last pushed at the end
        self.waiting = OrderedDict()  # id -> (pushes, time of the last), the same
        self.free, self.now = [], -(2**62)
        kinds = ("weight", *self.rule.state)
        self.arrays = {kind: np.zeros((FIRST, self.dim), np.float32) for kind in kinds}
        self.seen = np.zeros(FIRST, np.int64)

    def __len__(self):
        return len(self.slots)

    def pull(self, ids):
        """The weights of these ids, (n,) int64 -> (n, dim) float32."""
        weights = self.initial(ids)
        known = [(i, slot) for i, id in enumerate(ids.tolist())
                 if (slot := self.slots.get(id)) is not None]
        if known:
            at, slots = (list(column) for column in zip(*known, strict=True))
            weights[at] = self.arrays["weight"][slots]
        return weights

    def push(self, ids, grads, now):
        """Update the rows of these ids, each once, by gradients (n, dim) at event time now, ms."""
        self.tick(now)
        slots, at, new = [], [], []
        for i, id in enumerate(ids.tolist()):
            slot = self.slots.get(id)
            if slot is not None:
                self.slots.move_to_end(id)
            elif self._admitted(id):
                slot = self._slot(id)
                new.append(len(slots))
            else:
                continue
            slots.append(slot)
            at.append(i)
        slots, at = np.array(slots, np.int64), np.array(at, np.int64)
        self.arrays["weight"][slots[new]] = self.initial(ids[at[new]])
        touched = [array[slots] for array in self.arrays.values()]
        self.rule.update(touched[0], grads[at], *touched[1:])
        for array, rows in zip(self.arrays.values(), touched, strict=True):
            array[slots] = rows
        self.seen[slots] = self.now

    def tick(self, now):
        """Event time is now, in ms: forget what no push has had for ttl_s. A server is told of the
        pushes that have no id of its own, too, so that all servers have one clock."""
        self.now = max(self.now, now)
        self._forget()

    def initial(self, ids):
        if not self.rule.scale:
            return np.zeros((len(ids), self.dim), np.float32)
        draws = mixed(mixed(ids.astype(np.uint64) + np.uint64(self.seed))[:, None]
                      + np.arange(self.dim, dtype=np.uint64))
        unit = (draws >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - 1
        return self.rule.scale * unit

    def _admitted(self, id):
        """Whether an id without a row gets one with this push."""
        pushes = self.waiting.pop(id, (0, 0))[0] + 1
        if pushes < self.admit:
            self.waiting[id] = pushes, self.now
        return pushes >= self.admit

    def _slot(self, id):
        slot = self.slots[id] = self.free.pop() if self.free else len(self.slots)
        if slot == len(self.seen):
            for kind, array in self.arrays.items():
                self.arrays[kind] = np.concatenate([array, np.zeros_like(array)])
            self.seen = np.concatenate([self.seen, np.zeros_like(self.seen)])
        return slot

    def _forget(self):
        """Rows and counts that no push has had for ttl_s: those at the front."""
        if self.ttl is None:
            return
        while self.slots and self.seen[slot := next(iter(self.slots.values()))] < (
                self.now - self.ttl):
            self.slots.popitem(last=False)
            self.free.append(slot)
            for array in self.arrays.values():
                array[slot] = 0
        while self.waiting and next(iter(self.waiting.values()))[1] < self.now - self.ttl:
            self.waiting.popitem(last=False)

    def rows(self):
        """{name: array}: of each row its id, last push, weights and state; of ids without one
        `waiting`, (id, pushes, last push). In the order of the last push."""
        slots = list(self.slots.values())
        waiting = [(id, *one) for id, one in self.waiting.items()]
        return {"id": np.array(list(self.slots), np.int64), "seen": self.seen[slots],
                **{kind: array[slots] for kind, array in self.arrays.items()},
                "waiting": np.array(waiting, np.int64).reshape(-1, 3)}

    def load_rows(self, rows, mine):
        """Take over, of rows() of all servers, those of which mine(ids) is true."""
        self.clear()
        which = np.flatnonzero(mine(rows["id"]))
        which = which[np.argsort(rows["seen"][which], kind="stable")]
        slots = [self._slot(id) for id in rows["id"][which].tolist()]
        self.seen[slots] = rows["seen"][which]
        for kind, array in self.arrays.items():
            array[slots] = rows[kind][which]
        waiting = rows["waiting"][mine(rows["waiting"][:, 0])]
        for id, pushes, when in waiting[np.argsort(waiting[:, 2], kind="stable")].tolist():
            self.waiting[id] = pushes, when


def mixed(x):
    """A hash of 64-bit numbers: the finalizer of SplitMix64 (Steele et al. 2014)."""
    x = x.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)

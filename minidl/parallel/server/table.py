"""A table of embeddings that grows: a row is made when its id is seen, and removed when unused.

    id 7741  --> slot 2           slot    weight | z | n | seen      If the arrays are full, they
    id 12    --> slot 0           0        ...                       are doubled. A push changes
    id 903   no row: it was in    1       free                       only the slots of its ids
             1 push of 3          2        ...

Ids are any int64 numbers. There may be more ids than rows in memory. An id gets a row
after it was in `admit` pushes (most ids come only once). The row and its optimizer's state are
removed if the id was in no push for `ttl_s` seconds of event time. Ids with and without rows are
kept in the order of their last push, so the oldest ids come first. An id without a row has
its initial weights, which are a function of seed and id.

    ftrl       z += g - (sqrt(n + g^2) - sqrt(n)) / alpha * w      n += g^2
               w = 0 where |z| <= l1, else (sign(z) l1 - z) / ((beta + sqrt(n)) / alpha + l2)
    adagrad    n += g^2      w -= lr g / (sqrt(n) + eps)

Sources: McMahan et al. 2013 (KDD), FTRL-proximal and admission; Duchi et al. 2011, AdaGrad.
Test: tests/parallel/server/test_table.py   Used by: tables.py, tutorials/train_clicks.py
"""

from collections import OrderedDict
from typing import Callable, NamedTuple

import numpy as np

FIRST = 64  # how many slots a new table has


class Rows(NamedTuple):
    """Tells how a table updates its rows.

    update   a function. update(w, g, *state) changes w and the state in place. All arrays are
             (rows, dim)
    state    the names of the state arrays
    scale    initial weights are uniform in [-scale, scale). If scale is 0, the weights start at
             0"""

    update: Callable
    state: tuple
    scale: float


def ftrl(alpha=0.1, beta=1.0, l1=0.0, l2=0.0):
    """Returns Rows for FTRL-proximal. Weights start at 0, and stay 0 while |z| <= l1."""

    def update(w, g, z, n):
        root = np.sqrt(n)
        n += g * g
        now = np.sqrt(n)
        z += g - (now - root) / alpha * w
        w[...] = np.where(np.abs(z) <= l1, 0, (np.sign(z) * l1 - z) / ((beta + now) / alpha + l2))

    return Rows(update, ("z", "n"), 0.0)


def adagrad(lr=0.1, eps=1e-10, scale=0.05):
    """Returns Rows for AdaGrad, with initial weights in [-scale, scale)."""

    def update(w, g, n):
        n += g * g
        w -= lr * g / (np.sqrt(n) + eps)

    return Rows(update, ("n",), scale)


class Table:
    """The rows of one server.

    dim     the number of elements of a row
    rows    ftrl(...) or adagrad(...); by default adagrad()
    admit   an id gets a row when it is in a push for the `admit`-th time
    ttl_s   the seconds of event time after which an unused row is removed. With None no row is
            removed
    seed    the initial weights of an id are a function of seed and id

    Raises ValueError for a wrong argument."""

    def __init__(self, name, dim, rows=None, admit=1, ttl_s=None, seed=0):
        if dim < 1 or admit < 1 or not isinstance(rows, Rows | None):
            raise ValueError("a table wants dim >= 1, admit >= 1, and rows=adagrad(...) or "
                             f"ftrl(...); got dim={dim}, admit={admit}, rows={rows!r}")
        self.name, self.dim, self.rule, self.seed = name, dim, rows or adagrad(), seed
        self.admit, self.ttl = admit, None if ttl_s is None else round(1000 * ttl_s)
        self.clear()

    def clear(self):
        # `slots` and `waiting` are in the order of the last push, the newest at the end
        self.slots = OrderedDict()  # id -> slot
        self.waiting = OrderedDict()  # id without a row -> (pushes, time of the last push)
        self.free, self.now = [], -(2**62)
        kinds = ("weight", *self.rule.state)
        self.arrays = {kind: np.zeros((FIRST, self.dim), np.float32) for kind in kinds}
        self.seen = np.zeros(FIRST, np.int64)

    def __len__(self):
        return len(self.slots)

    def pull(self, ids):
        """Returns the weights of these ids as an array (n, dim), float32. ids: (n,) int64."""
        weights = self.initial(ids)
        known = [(i, slot) for i, id in enumerate(ids.tolist())
                 if (slot := self.slots.get(id)) is not None]
        if known:
            at, slots = (list(column) for column in zip(*known, strict=True))
            weights[at] = self.arrays["weight"][slots]
        return weights

    def push(self, ids, grads, now):
        """Updates the rows of these ids by grads, (n, dim). No id may occur twice. now: the event
        time in ms."""
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
        """Sets the event time to now, in ms, and removes rows whose ids were in no push for ttl_s.
        A server also gets pushes without any of its own ids, so the event time is the same on all
        servers."""
        self.now = max(self.now, now)
        self._forget()

    def initial(self, ids):
        """Returns the initial weights (n, dim) of ids. They are a hash of id and seed, so they are
        the same on every rank."""
        if not self.rule.scale:
            return np.zeros((len(ids), self.dim), np.float32)
        draws = mixed(mixed(ids.astype(np.uint64) + np.uint64(self.seed))[:, None]
                      + np.arange(self.dim, dtype=np.uint64))
        unit = (draws >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - 1
        return self.rule.scale * unit

    def _admitted(self, id):
        """Counts a push of an id without a row. Returns True if the id gets a row now."""
        pushes = self.waiting.pop(id, (0, 0))[0] + 1
        if pushes < self.admit:
            self.waiting[id] = pushes, self.now
        return pushes >= self.admit

    def _slot(self, id):
        """Returns a free slot for this id. Doubles the arrays if they are full."""
        slot = self.slots[id] = self.free.pop() if self.free else len(self.slots)
        if slot == len(self.seen):
            for kind, array in self.arrays.items():
                self.arrays[kind] = np.concatenate([array, np.zeros_like(array)])
            self.seen = np.concatenate([self.seen, np.zeros_like(self.seen)])
        return slot

    def _forget(self):
        """Removes the rows and counts of ids that were in no push for ttl_s. The oldest ids come
        first in the dicts `slots` and `waiting`."""
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
        """Returns {name: array}. "id", "seen" (the time of the last push), "weight" and the names
        of the state arrays have an entry for each row. The rows are in the order of their last
        push. "waiting" has (id, number of pushes, time of the last push) for each id without a
        row."""
        slots = list(self.slots.values())
        waiting = [(id, *one) for id, one in self.waiting.items()]
        return {"id": np.array(list(self.slots), np.int64), "seen": self.seen[slots],
                **{kind: array[slots] for kind, array in self.arrays.items()},
                "waiting": np.array(waiting, np.int64).reshape(-1, 3)}

    def load_rows(self, rows, mine):
        """Replaces all rows of this table. Takes the entries of `rows` for which mine(ids) is True.
        rows: the results of rows() on all servers, concatenated."""
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
    """Returns a hash of each 64-bit number in the array x. The hash is the finalizer of SplitMix64
    (Steele et al. 2014)."""
    x = x.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)

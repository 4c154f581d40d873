"""minidl/snapshot/rows.py: what ranks have parts of, saved by some and loaded by others."""

import numpy as np
import pytest

from minidl import nn, snapshot
from minidl.comm import simulate
from minidl.elastic.buddy import _parts


class Held:
    """Numbers r, r + size, ... below n, and their squares as rows of 2 x 3 float32."""

    def __init__(self, rank=0, size=1, n=0):
        self.numbers = np.arange(rank, n, size)
        self.loaded = None

    def state_dict(self):
        return {"kind": 7}

    def load_state_dict(self, state):
        assert state == {"kind": 7}

    def rows(self):
        squares = (self.numbers ** 2).astype(np.float32)
        return {"number": self.numbers, "square": np.tile(squares[:, None, None], (1, 2, 3))}

    def load_rows(self, rows):
        self.loaded = rows


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_rows_of_all_ranks_come_back_on_any_number(tmp_path, size, n):
    def save(t):
        snapshot.save(tmp_path, 1, t, model=nn.Linear(2, 2), held=Held(t.rank, t.size, n))

    def load(t):
        held = Held()
        snapshot.load(tmp_path, t, model=nn.Linear(2, 2), held=held)
        return held.loaded

    simulate(size, save)
    for there in (1, 3):
        for rows in simulate(there, load):
            assert sorted(rows["number"].tolist()) == list(range(n))
            assert rows["number"].dtype == np.int64 and rows["square"].shape == (n, 2, 3)
            assert (rows["square"] == (rows["number"] ** 2)[:, None, None]).all()


def test_healing_in_place_refuses_them():
    def body(t):
        with pytest.raises(TypeError, match="each rank has its own rows of held.*--restarts"):
            _parts(t, {"model": nn.Linear(1, 1), "held": Held()})

    simulate(1, body)

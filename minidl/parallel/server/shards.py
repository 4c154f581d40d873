"""Which server holds which tensors, and what a message with them looks like.

    tensors     w1 (6, 9)   b1 (9,)   table (50, 4)          server 0   [table]       200 elements
    2 servers   dealt whole, by size                         server 1   [w1 b1]        63

    values      | dense tensors, one after another | rows of table 1 | rows of table 2 |
    ids         | how many rows of each table | their numbers, table by table |           int64

A request and a reply begin with a header (framing.py): its kind, the version that was read or is
sent, and for a push its samples. The body of a request is the ids, that of a reply the values.

Test: tests/parallel/server/test_server.py   Used by: server.py, worker.py, tables.py
"""

import math
import traceback

import numpy as np

from minidl.comm import framing, objects
from minidl.comm.framing import HEADER_BYTES  # noqa: F401  for the formulas of the tutorial
from minidl.parallel.data import flat

PULL, PUSH, LEAVE, TICK = range(4)  # requests
GRANTED, REFUSED = range(2)  # replies


def why_left(kind, error):
    """The body of LEAVE, of what `__exit__` is told: the error as a text, or nothing."""
    if kind is None:
        return framing.NO_BODY
    return objects.pack("".join(traceback.format_exception_only(kind, error)).strip())


def recv_text(t, src, n_bytes, label):
    """The text that src sends behind a header: why it left, or refuses; None if there is none."""
    if not n_bytes:
        return None
    return objects.unpack(framing.recv_body(t, src, n_bytes, np.uint8, label))


def shards(params, n_servers):
    """The indices of the tensors that each server holds: the largest first, to whoever has least.

    Whole tensors, because an optimizer may need a tensor's norm and a table its rows. The fullest
    server holds at most 4/3 - 1/(3S) of the best possible (Graham 1969)."""
    owned, load = [[] for _ in range(n_servers)], [0] * n_servers
    for i in sorted(range(len(params)), key=lambda i: -params[i].nbytes):
        server = load.index(min(load))
        owned[server].append(i)
        load[server] += params[i].nbytes
    return [sorted(indices) for indices in owned]


class Shard:
    """One server's tensors, as its messages hold them: | dense ones | rows of table 1 | of 2 |"""

    def __init__(self, params, tables):
        by_row = {id(table) for table in tables}
        self.dense = [p for p in params if id(p) not in by_row]
        self.tables = [p for p in params if id(p) in by_row]
        self.params = [*self.dense, *self.tables]  # in the order of a message
        self.dtype = params[0].dtype if params else np.dtype(np.float32)
        self.xp = params[0]._xp if params else np  # on a GPU messages are CuPy's arrays

    def n_elems(self, rows):
        """Elements of a message with these rows: an array of row numbers for each table."""
        return sum(p.numel() for p in self.dense) + sum(
            len(ids) * math.prod(table.shape[1:]) for table, ids in zip(self.tables, rows))

    def parts(self, values, rows):
        """Views of a message: the shape of each dense tensor, and (rows, ...) of each table."""
        shapes = [p.shape for p in self.dense]
        shapes += [(len(ids), *table.shape[1:]) for table, ids in zip(self.tables, rows)]
        return flat.views(values, shapes)

    def pack(self, arrays, rows):
        """The message that holds `arrays`, one like each of `params`; of tables these rows."""
        values = self.xp.empty(self.n_elems(rows), self.dtype)
        picks = [...] * len(self.dense) + list(rows)
        for part, array, pick in zip(self.parts(values, rows), arrays, picks):
            part[...] = array[pick]
        return values


def check(t, params, n_servers, tables):
    """The Shard of each server; raises unless there is a worker and the tensors are alike."""
    if not 1 <= n_servers < t.size:
        raise ValueError(f"rank {t.rank}: a parameter server needs at least one server and one "
                         f"worker; got {n_servers} servers among {t.size} ranks")
    dtypes = sorted({str(p.dtype) for p in params})
    if len(dtypes) != 1:
        raise ValueError(f"rank {t.rank}: a message has one dtype, so all parameters must; got "
                         f"{', '.join(dtypes) or 'no parameters'}. Serve each dtype on its own.")
    for table in tables:
        if all(table is not p for p in params):
            raise ValueError(f"rank {t.rank}: a table of shape {table.shape} is no parameter")
    return [Shard([params[i] for i in owned], tables) for owned in shards(params, n_servers)]

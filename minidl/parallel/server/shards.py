"""Which server holds which tensors, and what a message with them looks like.

    tensors     w1 (6, 9)   b1 (9,)   table (50, 4)          server 0   [table]       200 elements
    2 servers   dealt whole, by size                         server 1   [w1 b1]        63

    values      | the server's tensors, one after another |

A request and a reply begin with a header (framing.py): its kind, the version that was read or is
sent, and for a push its samples. The body of a push and of a reply is the values. Rows of a large
table travel by themselves in another server, which makes them when an id first comes: tables.py.

Test: tests/parallel/server/test_server.py   Used by: server.py, worker.py, tables.py
"""

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

    Whole tensors, because an optimizer may need a tensor's norm. The fullest
    server holds at most 4/3 - 1/(3S) of the best possible (Graham 1969)."""
    owned, load = [[] for _ in range(n_servers)], [0] * n_servers
    for i in sorted(range(len(params)), key=lambda i: -params[i].nbytes):
        server = load.index(min(load))
        owned[server].append(i)
        load[server] += params[i].nbytes
    return [sorted(indices) for indices in owned]


class Shard:
    """One server's tensors, as its messages hold them: one after another."""

    def __init__(self, params):
        self.params = params
        self.dtype = params[0].dtype if params else np.dtype(np.float32)
        self.xp = params[0]._xp if params else np  # on a GPU messages are CuPy's arrays
        self.n_elems = sum(p.numel() for p in params)

    def parts(self, values):
        """Views of a message, in the tensors' shapes."""
        return flat.views(values, [p.shape for p in self.params])

    def pack(self, arrays):
        """The message that holds `arrays`, one like each of `params`."""
        values = self.xp.empty(self.n_elems, self.dtype)
        for part, array in zip(self.parts(values), arrays):
            part[...] = array
        return values


def check(t, params, n_servers):
    """The Shard of each server; raises unless there is a worker and the tensors are alike."""
    if not 1 <= n_servers < t.size:
        raise ValueError(f"rank {t.rank}: a parameter server needs at least one server and one "
                         f"worker; got {n_servers} servers among {t.size} ranks")
    dtypes = sorted({str(p.dtype) for p in params})
    if len(dtypes) != 1:
        raise ValueError(f"rank {t.rank}: a message has one dtype, so all parameters must; got "
                         f"{', '.join(dtypes) or 'no parameters'}. Serve each dtype on its own.")
    return [Shard([params[i] for i in owned]) for owned in shards(params, n_servers)]

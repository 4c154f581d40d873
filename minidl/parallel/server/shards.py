"""Computes which server holds which tensors. Packs the tensors of a server into one message.

    tensors     w1 (6, 9)   b1 (9,)   table (50, 4)          server 0   [table]       200 elements
    2 servers   whole tensors, divided by size               server 1   [w1 b1]        63 elements

    values      | the server's tensors, one after another |  a 1-d array

A request and a reply begin with a header (framing.py). The header holds the kind of the message and
a version. In a request it is the version of the weights that the worker has. In a reply it is the
version of the weights that the server sends. The header of a push also holds the number of samples.
The body of a push and of a reply holds the values. For large embedding tables there is another
server (tables.py), which sends single rows.

Test: tests/parallel/server/test_server.py   Used by: server.py, worker.py, tables.py
"""

import traceback

import numpy as np

from minidl.comm import framing, objects
from minidl.comm.framing import HEADER_BYTES  # noqa: F401  for the formulas of the tutorial
from minidl.parallel.data import flat

PULL, PUSH, LEAVE, TICK = range(4)  # the kinds of requests
GRANTED, REFUSED = range(2)  # the kinds of replies


def why_left(kind, error):
    """Returns the body of a LEAVE message. The body is the error as text, or it is empty if there
    is no error. kind, error: the arguments of __exit__."""
    if kind is None:
        return framing.NO_BODY
    return objects.pack("".join(traceback.format_exception_only(kind, error)).strip())


def recv_text(t, src, n_bytes, label):
    """Receives the text that follows a header from rank src. The text tells why src left, or why it
    refuses to send values. Returns the text, or None if n_bytes is 0."""
    if not n_bytes:
        return None
    return objects.unpack(framing.recv_body(t, src, n_bytes, np.uint8, label))


def shards(params, n_servers):
    """Returns for each server a list of the indices of its tensors.

    Takes the largest tensors first, and gives each tensor to the server that has the fewest bytes
    so far. Tensors are not cut, because an optimizer may need a tensor's norm. With S servers, the
    fullest server holds at most 4/3 - 1/(3S) times as many bytes as the fullest server of the best
    division (Graham 1969)."""
    owned, load = [[] for _ in range(n_servers)], [0] * n_servers
    for i in sorted(range(len(params)), key=lambda i: -params[i].nbytes):
        server = load.index(min(load))
        owned[server].append(i)
        load[server] += params[i].nbytes
    return [sorted(indices) for indices in owned]


class Shard:
    """The tensors of one server. A message holds them one after another, as a 1-d array."""

    def __init__(self, params):
        self.params = params
        self.dtype = params[0].dtype if params else np.dtype(np.float32)
        self.xp = params[0]._xp if params else np  # on a GPU messages are CuPy's arrays
        self.n_elems = sum(p.numel() for p in params)

    def parts(self, values):
        """Returns views of a message, in the tensors' shapes."""
        return flat.views(values, [p.shape for p in self.params])

    def pack(self, arrays):
        """Returns the message that holds `arrays`, which have the shapes of `params`."""
        values = self.xp.empty(self.n_elems, self.dtype)
        for part, array in zip(self.parts(values), arrays):
            part[...] = array
        return values


def check(t, params, n_servers):
    """Returns the Shard of each server. Raises ValueError unless there is at least one server and
    at least one worker, and all tensors have one dtype."""
    if not 1 <= n_servers < t.size:
        raise ValueError(f"rank {t.rank}: a parameter server wants at least one server and one "
                         f"worker; got n_servers={n_servers} and {t.size} ranks in all")
    dtypes = sorted({str(p.dtype) for p in params})
    if len(dtypes) != 1:
        raise ValueError(f"rank {t.rank}: a parameter server wants parameters of one dtype, "
                         "because a message has one dtype; got "
                         f"{', '.join(dtypes) or 'no parameters'}. Use a Server and a Worker for "
                         "each dtype")
    return [Shard([params[i] for i in owned]) for owned in shards(params, n_servers)]

"""A message with a header: what remote calls and the parameter server send. All that they share.

    header   | kind | number | more | bytes of the body |     four int64: HEADER_BYTES
    body     | anything                                 |     a second message, if not empty

    framing.send(t, 1, PULL, version, 0, ids, "table.ids")
    src, kind, version, _, n_bytes = framing.recv(t, "param_server.header")         from anybody
    ids = framing.recv_body(t, src, n_bytes // 8, np.int64, "table.ids")

The body is a message of its own, so that gradients arrive in an array of their dtype without a
copy, and a ledger counts them apart: label `family.what`, and `family.header` for the header. Use a
group for nothing else: `recv` takes the next message from anybody. Only one task of a rank may send
to a given rank: bodies must follow in the order of their headers.

Test: tests/comm/test_framing.py   Used by: rpc.py, parallel/server/
"""

import numpy as np

HEADER_BYTES = 32
HEADER, BODY = range(2)  # tags
NO_BODY = np.empty(0, np.uint8)


def isend(t, dst, kind, number=0, more=0, body=NO_BODY, label="framing.body"):
    """Start sending a header and its body; returns the requests to wait for."""
    header = np.array([kind, number, more, body.nbytes], np.int64)
    with t.named(label.partition(".")[0] + ".header"):
        request = t.isend(header, dst, HEADER)
    return [request, *isend_body(t, dst, body, label)]


def isend_body(t, dst, body, label):
    """Start sending one more body, whose size the receiver knows; returns the requests."""
    with t.named(label):
        return [t.isend(body, dst, BODY)] if body.nbytes else []


def send(t, dst, kind, number=0, more=0, body=NO_BODY, label="framing.body"):
    """`isend`, and wait."""
    for request in isend(t, dst, kind, number, more, body, label):
        request.wait()


def recv(t, label, src=None):
    """The next header, from anybody or from src: (src, kind, number, more, bytes of the body)."""
    with t.named(label):
        if src is None:
            src, header = t.recv_any(HEADER)
        else:
            header = t.recv(np.empty(4, np.int64), src, HEADER)
    return src, *header.view(np.int64).tolist()


def recv_body(t, src, n_elems, dtype, label, xp=np):
    """The next body from src: a 1-d array of this library."""
    body = xp.empty(n_elems, dtype)
    with t.named(label):
        return t.recv(body, src, BODY) if body.nbytes else body

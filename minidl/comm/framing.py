"""A message with a header. Remote calls and the parameter server send such messages.

    header   | kind | number | more | bytes of the body |     four int64 (HEADER_BYTES bytes)
    body     | any bytes                                |     a second message, unless empty

    framing.send(t, 1, PULL, version, 0, ids, "table.ids")
    src, kind, version, _, n_bytes = framing.recv(t, "param_server.header")         from any rank
    ids = framing.recv_body(t, src, n_bytes // 8, np.int64, "table.ids")

The caller chooses the meaning of the ints kind, number and more. The body is a separate message. So
gradients arrive in an array of their dtype without a copy. A ledger counts headers and bodies
separately. If the body has the label `family.what`, its header has the label `family.header`. Send
no other messages in this group, because `recv` takes the next message from any rank. The bodies
must arrive in the order of their headers. So if a rank runs several tasks, only one of these tasks
may send to a given rank.

Test: tests/comm/test_framing.py   Used by: rpc.py, parallel/server/
"""

import numpy as np

HEADER_BYTES = 32
HEADER, BODY = range(2)  # the tags of a header and of its body
NO_BODY = np.empty(0, np.uint8)


def isend(t, dst, kind, number=0, more=0, body=NO_BODY, label="framing.body"):
    """Starts to send a header and its body. Returns the list of requests to wait for.

    kind, number, more: ints for the receiver. The caller chooses their meaning. body: any
    contiguous array. label: the body's label for ledgers, such as "table.ids"."""
    header = np.array([kind, number, more, body.nbytes], np.int64)
    with t.named(label.partition(".")[0] + ".header"):
        request = t.isend(header, dst, HEADER)
    return [request, *isend_body(t, dst, body, label)]


def isend_body(t, dst, body, label):
    """Starts to send a body without a header. The receiver must know the size of this body. Returns
    the list of requests to wait for."""
    with t.named(label):
        return [t.isend(body, dst, BODY)] if body.nbytes else []


def send(t, dst, kind, number=0, more=0, body=NO_BODY, label="framing.body"):
    """Sends a header and its body, like `isend`, and waits until both are sent."""
    for request in isend(t, dst, kind, number, more, body, label):
        request.wait()


def recv(t, label, src=None):
    """Receives the next header from rank src. If src is None, receives the next header from any
    rank. Returns (src, kind, number, more, the number of bytes of the body).

    kind, number, more: three ints that the sender has chosen."""
    with t.named(label):
        if src is None:
            src, header = t.recv_any(HEADER)
        else:
            header = t.recv(np.empty(4, np.int64), src, HEADER)
    return src, *header.view(np.int64).tolist()


def recv_body(t, src, n_elems, dtype, label, xp=np):
    """Receives the next body from rank src. Returns a 1-d array of n_elems.

    xp: the array library of the result, NumPy or CuPy."""
    body = xp.empty(n_elems, dtype)
    with t.named(label):
        return t.recv(body, src, BODY) if body.nbytes else body

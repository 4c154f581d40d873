"""Headers and bodies: each body follows its header, from whomever it comes."""

import numpy as np

from minidl.comm import framing
from minidl.comm.observe.ledger import Ledger
from tests.conftest import ranks

SIZES = [0, 3, 0, 1000]  # int64 elements of the bodies


def body_of(rank, i):
    return 1000 * rank + np.arange(SIZES[i])


@ranks(1, 2, 3, 5, 8)
def test_bodies_of_several_senders_are_not_mixed(t):
    t, requests = t.subgroup(range(t.size)), []  # of its own: recv takes a header from anybody
    if t.rank:
        for i in range(len(SIZES)):
            requests += framing.isend(t, 0, t.rank, i, -i, body_of(t.rank, i), "family.what")
    else:
        next_number = dict.fromkeys(range(1, t.size), 0)
        for _ in range((t.size - 1) * len(SIZES)):
            src, kind, number, more, n_bytes = framing.recv(t, "family.header")
            assert (kind, number, more) == (src, next_number[src], -number)
            assert n_bytes == 8 * SIZES[number]
            body = framing.recv_body(t, src, n_bytes // 8, np.int64, "family.what")
            np.testing.assert_array_equal(body, body_of(src, number))
            next_number[src] += 1
    for request in requests:
        request.wait()


@ranks(2, 3)
def test_headers_and_bodies_are_counted_apart(t):
    ledger = Ledger(t)
    for body in (np.ones(7, np.float16), framing.NO_BODY):
        if t.rank == 0:
            framing.send(ledger, 1, 4, body=body, label="family.what")
        if t.rank == 1:
            assert framing.recv(ledger, "family.header", 0) == (0, 4, 0, 0, body.nbytes)
            there = framing.recv_body(ledger, 0, len(body), body.dtype, "family.what")
            np.testing.assert_array_equal(there, body)
    headers, bodies = ledger.count(label="family.header"), ledger.count(label="family.what")
    sent = (headers.messages_sent, headers.bytes_sent, bodies.messages_sent, bodies.bytes_sent)
    assert sent == ((2, 2 * framing.HEADER_BYTES, 1, 14) if t.rank == 0 else (0, 0, 0, 0))
    assert ledger.bytes_received == (2 * framing.HEADER_BYTES + 14 if t.rank == 1 else 0)

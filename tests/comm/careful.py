"""A transport that raises where a collective breaks rule 3: whose is the buffer, and until when."""

import numpy as np

from minidl.comm.transport.protocol import Transport, Wrapper


class Careful(Wrapper):
    """Raises where a buffer is touched between isend or irecv and the return of wait()."""

    def __init__(self, inner, pending=None):
        super().__init__(inner)
        self.pending = [] if pending is None else pending  # (array, what a send had in it)

    def around(self, inner):
        return Careful(inner, self.pending)

    def isend(self, array, dst, tag=0):
        self.check(array, sending=True)
        return self.start(self.inner.isend(array, dst, tag), array, array.copy())

    def irecv(self, out, src, tag=0):
        self.check(out, sending=False)
        return self.start(self.inner.irecv(out, src, tag), out, None)

    send, sendrecv = Transport.send, Transport.sendrecv  # by way of the two above

    def check(self, array, sending):
        for other, sent in self.pending:
            if np.may_share_memory(array, other) and not (sending and sent is not None):
                raise AssertionError("a buffer is received into while it is still in use")

    def start(self, request, array, sent):
        self.pending.append((array, sent))
        return CarefulRequest(request, self.pending, self.pending[-1])


class CarefulRequest:
    def __init__(self, inner, pending, entry):
        self.inner, self.pending, self.entry = inner, pending, entry

    def wait(self):
        self.inner.wait()
        array, sent = self.entry
        assert sent is None or (array == sent).all(), "a buffer changed before its send was waited"
        self.pending[:] = [other for other in self.pending if other is not self.entry]

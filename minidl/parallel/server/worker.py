"""A worker of the parameter server: pull weights, push gradients or differences.

    with Worker(t, params, n_servers=2) as worker:       on ranks 2, 3, ...
        for images, labels in loader:
            worker.pull()                                 p.data = the servers' weights
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            worker.push(len(images))                      p.grad to the servers

Geo: k steps of a local optimizer between `pull` and `push_difference`, which sends (p.data - what
was pulled) / N; so every worker's progress counts one part in N, and messages come every k steps.

The parameters may be on a GPU, those of the servers too or not: a pull comes up, and a push goes
down, as one message for each server (comm/transport/staging.py).

The end of the block tells the servers that this worker leaves; so does an exception.

Test: tests/parallel/server/test_server.py, test_geo.py
Tutorial: tutorials/10_parameter_server.py
"""

from minidl.backward import gradient_or_zeros
from minidl.comm import framing
from minidl.parallel.server.shards import LEAVE, PULL, PUSH, REFUSED, check, recv_text, why_left


class Refused(RuntimeError):
    """A server has failed, or has dropped this worker. rank: the server's."""

    rank = None


class Worker:
    """The arguments are those of server.Server; `versions`: the version pulled from each."""

    def __init__(self, t, params, n_servers=1):
        self.shards = check(t, params, n_servers)
        self.t = t.subgroup(range(t.size))  # messages of its own, as the servers'
        self.n_workers = t.size - n_servers
        self.versions = [0] * n_servers
        self._pulled = [None] * n_servers  # the last reply of each server

    def pull(self):
        """Overwrites p.data with the servers' weights. Waits if the rule asks for it."""
        for server in range(len(self.shards)):
            self._request(PULL, server)
        for server, shard in enumerate(self.shards):
            self._pulled[server] = values = self._receive(server)
            for p, part in zip(shard.params, shard.parts(values)):
                p.array[...] = part
                p.version += 1

    def push(self, n_samples=1):
        """Send p.grad; no gradient counts as zeros. n_samples weighs it in the mean of SYNC. Then
        forgets the gradients."""
        for server, shard in enumerate(self.shards):
            grads = [gradient_or_zeros(p) for p in shard.params]
            self._push(server, shard.pack(grads), n_samples)
            for p in shard.params:
                p.grad = None

    def push_difference(self):
        """Send (p.data - what was pulled) / N."""
        for server, shard in enumerate(self.shards):
            if self._pulled[server] is None:
                raise RuntimeError(f"rank {self.t.rank}: pull before the first push_difference")
            values = shard.pack([p.array for p in shard.params])
            values -= self._pulled[server]
            values /= self.n_workers
            self._push(server, values, 1)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        why = why_left(kind, error)
        for server in range(len(self.shards)):
            if not (isinstance(error, Refused) and error.rank == server):
                framing.send(self.t, server, LEAVE, body=why, label="param_server.left")

    def _request(self, kind, server, n_samples=0):
        framing.send(self.t, server, kind, self.versions[server], n_samples,
                     label="param_server.header")

    def _push(self, server, values, n_samples):
        self._request(PUSH, server, n_samples)
        for request in framing.isend_body(self.t, server, values, "param_server.push"):
            request.wait()

    def _receive(self, server):
        """The values of a reply; raises Refused."""
        _, kind, version, _, n_bytes = framing.recv(self.t, "param_server.header", server)
        if kind == REFUSED:
            text = recv_text(self.t, server, n_bytes, "param_server.refused")
            error = Refused(f"rank {self.t.rank}: {text}")
            error.rank = server
            raise error
        self.versions[server] = version
        shard = self.shards[server]
        return framing.recv_body(self.t, server, shard.n_elems, shard.dtype, "param_server.pull",
                                 shard.xp)

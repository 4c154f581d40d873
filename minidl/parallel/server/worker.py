"""A worker of the parameter server. It pulls weights, and pushes gradients or differences.

    with Worker(t, params, n_servers=2) as worker:       on ranks 2, 3, ...
        for images, labels in loader:
            worker.pull()                                 p.data = the servers' weights
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            worker.push(len(images))                      p.grad to the servers

Geo: a worker makes k steps of a local optimizer between `pull` and `push_difference`. The push
sends (p.data - the pulled weights) / N, with N workers. So each worker's progress counts 1/N, and
messages are sent only every k steps.

Parameters may be on a GPU, on workers and on servers. Then the weights of a pull are copied to the
GPU, and the gradients of a push are copied from the GPU. A pull or a push sends one message with
values for each server (comm/transport/staging.py).

At the end of the block, or at an exception in it, the worker tells the servers that it leaves.

Test: tests/parallel/server/test_server.py, test_geo.py
Tutorial: tutorials/10_parameter_server.py
"""

from minidl.backward import gradient_or_zeros
from minidl.comm import framing
from minidl.parallel.server.shards import LEAVE, PULL, PUSH, REFUSED, check, recv_text, why_left


class Refused(RuntimeError):
    """Raised on a worker if a server has failed or has dropped this worker. rank: the rank of this
    server."""

    rank = None


class Worker:
    """One worker rank. The arguments are as in server.Server. The attribute `versions` has, for
    each server, the version of the weights that this worker pulled last."""

    def __init__(self, t, params, n_servers=1):
        self.shards = check(t, params, n_servers)
        self.t = t.subgroup(range(t.size))  # a copy of t: messages to the copy never arrive on t
        self.n_workers = t.size - n_servers
        self.versions = [0] * n_servers
        self._pulled = [None] * n_servers  # the last reply of each server

    def pull(self):
        """Overwrites p.data with the servers' weights. Waits until the rule lets this worker pull.
        Raises Refused if a server has failed or has dropped this worker."""
        for server in range(len(self.shards)):
            self._request(PULL, server)
        for server, shard in enumerate(self.shards):
            self._pulled[server] = values = self._receive(server)
            for p, part in zip(shard.params, shard.parts(values)):
                p.array[...] = part
                p.version += 1

    def push(self, n_samples=1):
        """Sends each p.grad to the servers, and sets p.grad to None. If p.grad is None, zeros are
        sent. n_samples: the weight of this push in the mean of SYNC."""
        for server, shard in enumerate(self.shards):
            grads = [gradient_or_zeros(p) for p in shard.params]
            self._push(server, shard.pack(grads), n_samples)
            for p in shard.params:
                p.grad = None

    def push_difference(self):
        """Sends (p.data - the pulled weights) / N, with N workers. Raises RuntimeError if pull()
        was not called before."""
        for server, shard in enumerate(self.shards):
            if self._pulled[server] is None:
                raise RuntimeError(f"rank {self.t.rank}: push_difference() sends the difference "
                                   "from the pulled weights; got no pulled weights. Call pull() "
                                   "first")
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
        """Returns the values of a server's reply. Raises Refused if the server refuses to send
        values."""
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

"""A worker of the parameter server: pull weights, push gradients or differences.

    with Worker(t, params, n_servers=2) as worker:       on ranks 2, 3, ...
        for images, labels in loader:
            worker.pull()                                 p.data = the servers' weights
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            worker.push(len(images))                      p.grad to the servers

Geo: k steps of a local optimizer between `pull` and `push_difference`, which sends (p.data - what
was pulled) / N; so every worker's progress counts one part in N, and messages come every k steps.

Of a table (an embedding) only the rows are sent that `pull(rows={table: ids})` names, each once,
and the same rows when pushing. Other rows of p.data keep their old values.

The parameters may be on a GPU, those of the servers too or not: a pull comes up, and a push goes
down, as one message for each server (comm/transport/staging.py).

The end of the block tells the servers that this worker leaves; so does an exception.

Test: tests/parallel/server/test_server.py, test_rows.py, test_geo.py
Tutorial: tutorials/10_parameter_server.py
"""

import numpy as np

from minidl.backend import to_device
from minidl.comm import framing
from minidl.comm.transport import staging
from minidl.parallel.server.shards import LEAVE, PULL, PUSH, REFUSED, check, recv_text, why_left


class Refused(RuntimeError):
    """A server has failed, or has dropped this worker. rank: the server's."""

    rank = None


class Worker:
    """The arguments are those of server.Server; `versions`: the version pulled from each."""

    def __init__(self, t, params, n_servers=1, tables=()):
        self.shards = check(t, params, n_servers, tables)
        self.t = t.subgroup(range(t.size))  # messages of its own, as the servers'
        self.n_workers = t.size - n_servers
        self.tables = tables
        self.rows = [[np.empty(0, np.int64) for _ in s.tables] for s in self.shards]
        self.versions = [0] * n_servers
        self._pulled = [None] * n_servers  # the last reply of each server

    def pull(self, rows=None):
        """Overwrite p.data by the servers' weights; waits while the rule says so.

        rows: {table: numbers of the rows that will be used}, any shape, duplicates allowed."""
        self._name_rows(rows or {})
        for server in range(len(self.shards)):
            self._request(PULL, server)
        for server, (shard, ids) in enumerate(zip(self.shards, self.rows)):
            self._pulled[server] = values = self._receive(server)
            places = [...] * len(shard.dense) + ids
            for p, part, place in zip(shard.params, shard.parts(values, ids), places):
                p.data[place] = part
                p.version += 1

    def push(self, n_samples=1):
        """Send p.grad, of the rows last pulled; no gradient counts as zeros. n_samples weighs it in
        the mean of SYNC. Then forgets the gradients."""
        for server, shard in enumerate(self.shards):
            grads = [shard.xp.zeros_like(p.data) if p.grad is None else p.grad
                     for p in shard.params]
            self._push(server, shard.pack(grads, self.rows[server]), n_samples)
            for p in shard.params:
                p.grad = None

    def push_difference(self):
        """Send (p.data - what was pulled) / N."""
        for server, shard in enumerate(self.shards):
            if self._pulled[server] is None:
                raise RuntimeError(f"rank {self.t.rank}: pull before the first push_difference")
            values = shard.pack([p.data for p in shard.params], self.rows[server])
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

    def _name_rows(self, rows):
        """self.rows = for each server, for each of its tables, the rows to pull, each once."""
        for table in rows:
            if all(table is not known for known in self.tables):
                raise ValueError(
                    f"rank {self.t.rank}: rows are for tables; got rows for a tensor of shape "
                    f"{table.shape}. Name it in Worker(tables=...) on all ranks")
        none = np.empty(0, np.int64)
        on_host = {table: to_device(ids, "cpu") if staging.on_device(ids) else ids
                   for table, ids in rows.items()}
        self.rows = [[np.unique(on_host.get(table, none)) for table in s.tables]
                     for s in self.shards]
        for shard, of_shard in zip(self.shards, self.rows):
            for table, ids in zip(shard.tables, of_shard):
                n_rows = table.shape[0]
                if ids.dtype.kind not in "iu" or (len(ids) and not 0 <= ids[0] <= ids[-1] < n_rows):
                    raise IndexError(
                        f"rank {self.t.rank}: rows of this table are whole numbers from 0 to "
                        f"{n_rows - 1}; got {ids.dtype} from {ids.min()} to {ids.max()}")

    def _request(self, kind, server, n_samples=0):
        """The header, and the rows that it is about."""
        ids = self.rows[server]
        ids = np.concatenate([[len(i) for i in ids], *ids]).astype(np.int64) if ids else np.empty(0)
        version = self.versions[server]
        framing.send(self.t, server, kind, version, n_samples, ids, "param_server.ids")

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
        n_elems = shard.n_elems(self.rows[server])
        return framing.recv_body(self.t, server, n_elems, shard.dtype, "param_server.pull",
                                 shard.xp)

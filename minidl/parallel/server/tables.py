"""Tables on servers: rows sharded by a hash of the id, pulled and pushed by a stream's readers.

    server 0   user: ids with hash % 2 = 0        worker 2   pull ids -> rows, compute, push
    server 1   user: ids with hash % 2 = 1        worker 3   ...

    tables = Tables(t, [Table("user", dim=8, admit=3)], servers=2, partitions=log.partitions)
    if tables.serves:
        for step in tables.serve():               # at each cut
            snapshot.save("runs", step, t, model=model, tables=tables, source=src)
    with tables:                                  # a worker
        for parts, total in src: ...
            rows = tables.pull("user", ids)
            tables.push("user", ids, grads, part.partition, part.position, now)
            tables.end_step(src.mine)
            if step % 100 == 0:
                tables.cut(step)
                snapshot.save("runs", step, t, model=model, tables=tables, source=src)

SYNC applies a step's pushes when those of all partitions are there, in the order of the partitions:
the same bits on any number of workers and servers, one rank without any messages included. ASYNC
applies each as it comes. A push says how far its partition was read; a server drops what it has
seen, so that a worker may push again what it does not know to have arrived.

One cut: messages of a rank arrive in order, so when all workers' cuts have come, all pushes before
them have, and no other; then all ranks save together.

Event time is one clock: every push goes to all servers, those without an id of it included, so rows
are forgotten at the same step whatever the number of servers.

Bytes of n ids of one server: pull 32 + 8 n, and 32 + 4 dim n back; push 32 + 8 (n + 1) + 4 dim n;
end_step 32 a server, and for each table and partition that had nothing 40; leaving 32, and 32 back.
Labels: table.ids, .pull, .push, .header.
Source: Li et al. 2014 (OSDI).   Test: tests/parallel/server/test_tables.py
Used by: tutorials/train_clicks.py
"""

from collections import Counter

import numpy as np

from minidl.comm import framing
from minidl.parallel.server.rules import ASYNC, SYNC
from minidl.parallel.server.shards import recv_text, why_left
from minidl.parallel.server.table import mixed

PULL, PUSH, CUT, LEAVE = range(4)


class Tables:
    """Ranks 0 to servers - 1 serve, the others work; of one rank alone servers is 0.
    tables: [Table], alike on all ranks; partitions: of the stream; rule: SYNC or ASYNC."""

    def __init__(self, t, tables, servers, partitions, rule=SYNC):
        if rule not in (SYNC, ASYNC) or not (servers == 0 if t.size == 1 else 0 < servers < t.size):
            raise ValueError(f"rank {t.rank}: tables want SYNC or ASYNC, and 1 to {t.size - 1} "
                             f"servers (0 where one rank is alone); got {rule}, {servers}")
        if not isinstance(tables, list | tuple) or len({b.name for b in tables}) < len(tables):
            raise ValueError(f"rank {t.rank}: wanted a list of tables, each of a name of its own")
        self.t = t.subgroup(range(t.size))  # messages of its own
        self.tables, self.partitions, self.rule = {b.name: b for b in tables}, partitions, rule
        self.names, self.n_servers, self.serves = list(self.tables), servers, t.rank < servers
        self.seen = np.zeros((len(tables), partitions), np.int64)  # positions that have come
        self.inbox, self.round, self.waiting, self.replies = {}, 0, [], {}
        self.dropped, self._said = 0, set()

    # -- a worker

    def pull(self, name, ids):
        """The weights of these ids, (n,) -> (n, dim) float32; waits for the step before."""
        ids, table = np.ascontiguousarray(ids, np.int64), self._table(name)
        if not self.n_servers:
            return table.pull(ids)
        shares = self._shares(ids)
        for server, at in enumerate(shares):
            if len(at):
                framing.send(self.t, server, PULL, self.round, self.names.index(name), ids[at],
                             "table.ids")
        weights = np.empty((len(ids), table.dim), np.float32)
        for server, at in enumerate(shares):
            if len(at):
                framing.recv(self.t, "table.header", server)
                weights[at] = framing.recv_body(self.t, server, len(at) * table.dim, np.float32,
                                                "table.pull").reshape(-1, table.dim)
        return weights

    def push(self, name, ids, grads, partition, position, now):
        """Gradients (n, dim) of ids, each once, of what a partition gave in this step.
        position: how many of its records were used with these; now: event time, ms."""
        wanted, ids = self._table(name), np.ascontiguousarray(ids, np.int64)
        table = self.names.index(name)
        if np.shape(grads) != (len(ids), wanted.dim) or not 0 <= partition < self.partitions:
            raise ValueError(f"rank {self.t.rank}: wanted gradients {(len(ids), wanted.dim)} of a "
                             f"partition < {self.partitions}; got {np.shape(grads)} of {partition}")
        if len(np.unique(ids)) < len(ids):
            raise ValueError(f"rank {self.t.rank}: a push of {len(ids)} ids has some twice: add "
                             "their gradients up first (np.unique, np.add.at)")
        self._said.add((table, partition))
        position = position if len(ids) else 0
        grads, key = np.ascontiguousarray(grads, np.float32), table * self.partitions + partition
        if not self.n_servers:
            self._pushed(key, position, now, ids, grads)
        for server, at in enumerate(self._shares(ids) if self.n_servers else ()):
            body = np.concatenate([[now], ids[at]]).astype(np.int64)
            framing.send(self.t, server, PUSH, position, key, body, "table.ids")
            for request in framing.isend_body(self.t, server, grads[at], "table.push"):
                request.wait()

    def end_step(self, mine):
        """Of the partitions `mine` of this rank, those that gave nothing in this step say so."""
        none = np.empty(0, np.int64)
        for table, name in enumerate(self.names):
            for partition in mine:
                if (table, partition) not in self._said:
                    self.push(name, none, np.empty((0, self.tables[name].dim)), partition, 0,
                              -(2**62))
        self._said.clear()
        self.round += bool(self.n_servers)

    def cut(self, step):
        """Ask the servers to save with everybody, after all that was pushed before."""
        for server in range(self.n_servers):
            framing.send(self.t, server, CUT, step, label="table.cut")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        why = why_left(kind, error)
        for server in range(0 if self.serves else self.n_servers):
            framing.send(self.t, server, LEAVE, body=why, label="table.left")
        for server in range(0 if self.serves or kind else self.n_servers):  # it serves no more,
            framing.recv(self.t, "table.header", server)  # and what is sent next is not for it

    def _table(self, name):
        if name not in self.tables:
            raise ValueError(f"rank {self.t.rank}: no table {name!r}; there are {self.names}")
        return self.tables[name]

    # -- a server

    def serve(self):
        """Answer the workers until the last has left; yields the step of each cut, for all ranks
        to save together."""
        here, cuts = set(range(self.n_servers, self.t.size)), Counter()
        workers = sorted(here)
        while here:
            src, kind, number, more, n_bytes = framing.recv(self.t, "table.header")
            if kind == LEAVE:
                here.remove(src)
                if why := recv_text(self.t, src, n_bytes, "table.left"):
                    raise RuntimeError(f"rank {self.t.rank}: worker {src} left its tables by an "
                                       f"error: {why}")
            elif kind == CUT:
                cuts[number] += 1
                if cuts[number] == len(here):
                    yield number
            else:
                ids = framing.recv_body(self.t, src, n_bytes // 8, np.int64, "table.ids")
                if kind == PULL:
                    self.waiting.append((src, number, self.names[more], ids))
                else:
                    dim = self.tables[self.names[more // self.partitions]].dim
                    grads = framing.recv_body(self.t, src, (len(ids) - 1) * dim, np.float32,
                                              "table.push").reshape(-1, dim)
                    self._pushed(more, number, int(ids[0]), ids[1:], grads)
            self._answer()
        for worker in list(self.replies):
            self._sent(worker)
        for worker in workers:
            framing.send(self.t, worker, LEAVE, label="table.left")

    def _pushed(self, key, position, now, ids, grads):
        """Apply it, or keep it until the others of its step are there; drop what came before."""
        table, partition = divmod(key, self.partitions)
        if position:  # 0: the partition gave nothing. Else all servers hear of it, even without ids
            if position <= self.seen[table, partition]:
                self.dropped += 1
                return
            self.seen[table, partition] = position
        # a worker that has nothing to pull may be steps ahead
        self.inbox.setdefault(key, []).append((now, ids, grads))
        while len(self.inbox) == (1 if self.rule is ASYNC else self.seen.size):
            self.inbox, oldest = {}, self.inbox
            for key, ((now, ids, grads), *later) in sorted(oldest.items(), key=lambda one: one[0]):
                table = self.tables[self.names[key // self.partitions]]
                if len(ids):
                    table.push(ids, grads, now)
                else:
                    table.tick(now)
                if later:
                    self.inbox[key] = later
            self.round += bool(self.serves)

    def _answer(self):
        """Send what may be pulled now."""
        still = []
        for src, step, name, ids in self.waiting:
            if self.rule is SYNC and step > self.round:
                still.append((src, step, name, ids))
                continue
            self._sent(src)
            self.replies[src] = framing.isend(self.t, src, PULL,
                                              body=self.tables[name].pull(ids), label="table.pull")
        self.waiting = still

    def _sent(self, worker):
        for request in self.replies.pop(worker, ()):
            request.wait()

    def _shares(self, ids):
        """The places of each server's ids."""
        owner = mixed(ids) % np.uint64(self.n_servers)
        return [np.flatnonzero(owner == server) for server in range(self.n_servers)]

    # -- its state

    def state_dict(self):
        return {"tables": [[b.name, b.dim, *b.rule.state] for b in self.tables.values()],
                "partitions": self.partitions}

    def load_state_dict(self, state):
        if state != self.state_dict():
            raise ValueError(f"rank {self.t.rank}: the snapshot's tables are {state}, here "
                             f"{self.state_dict()}. Resume with the same")

    def rows(self):
        """The rows of this server; a worker has none. Positions are those of rank 0."""
        found = {"seen": self.seen[None if self.t.rank == 0 else slice(0)].reshape(
            -1, *self.seen.shape)}
        for name, table in self.tables.items():
            found |= {f"{name}/{kind}": array for kind, array in table.rows().items()}
            found[f"{name}/now"] = np.array([table.now])
        return found

    def load_rows(self, rows):
        """Of all servers' rows this one's, on any number of servers."""
        def mine(ids):
            owner = mixed(ids) % np.uint64(max(self.n_servers, 1))
            return owner == np.uint64(self.t.rank)

        self.seen[...] = rows["seen"][0]
        for name, table in self.tables.items():
            table.load_rows({key.partition("/")[2]: array for key, array in rows.items()
                             if key.startswith(f"{name}/")}, mine)
            table.now = int(rows[f"{name}/now"].max())

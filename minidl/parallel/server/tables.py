"""Tables on servers, for workers that read a stream. A row's server is chosen by a hash of its id.

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

SYNC waits until a push for each partition of the stream has arrived. Then it applies these pushes
in the order of the partitions. So the bits are the same for any numbers of workers and servers,
also for a single rank, which sends no messages. ASYNC applies each push when it arrives. A push
contains the position up to which its partition was read. A server drops a push whose position it
has already seen. So a worker may push again if it does not know whether a push has arrived.

A cut is a consistent moment to save. The messages of a rank arrive in order. Suppose that the cuts
of all workers have arrived. Then all pushes before the cuts have arrived, and no later push has
arrived. Then all ranks save together.

All servers have the same event time, because every push goes to all servers, even to a server that
has no id of this push. So rows are removed at the same step for any number of servers.

Bytes between a worker and one server, for n ids of this server:

    pull       32 + 8 n, and 32 + 4 dim n back
    push       32 + 8 (n + 1) + 4 dim n
    end_step   40 for each table and partition without a push
    cut        32
    leaving    32, and 32 back

The labels in a ledger are table.ids, .pull, .push and .header.
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
    """Divides the rows of tables over servers. Ranks 0 to servers - 1 are servers, the others are
    workers. If there is only one rank, `servers` must be 0.

    tables: a list of Table, the same on all ranks. partitions: the number of partitions of the
    stream. rule: SYNC or ASYNC. Raises ValueError for arguments that do not fit."""

    def __init__(self, t, tables, servers, partitions, rule=SYNC):
        if rule not in (SYNC, ASYNC) or not (servers == 0 if t.size == 1 else 0 < servers < t.size):
            raise ValueError(f"rank {t.rank}: Tables wants rule=SYNC or rule=ASYNC, and from 1 to "
                             f"{t.size - 1} servers (0 servers if there is only one rank); got "
                             f"rule={rule}, servers={servers}")
        if not isinstance(tables, list | tuple) or len({b.name for b in tables}) < len(tables):
            raise ValueError(f"rank {t.rank}: Tables wants a list of tables with different names; "
                             f"got {tables}")
        self.t = t.subgroup(range(t.size))  # a copy of t: messages to the copy never arrive on t
        self.tables, self.partitions, self.rule = {b.name: b for b in tables}, partitions, rule
        self.names, self.n_servers, self.serves = list(self.tables), servers, t.rank < servers
        self.seen = np.zeros((len(tables), partitions), np.int64)  # position of the last push
        self.inbox, self.round, self.waiting, self.replies = {}, 0, [], {}
        self.dropped, self._said = 0, set()

    # -- a worker

    def pull(self, name, ids):
        """Returns float32 weights of shape (n, dim), one row for each of the n ids. With SYNC,
        pull() waits until the pushes of the previous step have been applied."""
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
        """Pushes the gradients (n, dim) of ids. The gradients are from this step's records of one
        partition.

        No id may occur twice. position: how many records of the partition have been used, including
        the records of this push. now: the event time in ms. Raises ValueError for wrong shapes, or
        if an id occurs twice."""
        wanted, ids = self._table(name), np.ascontiguousarray(ids, np.int64)
        table = self.names.index(name)
        if np.shape(grads) != (len(ids), wanted.dim) or not 0 <= partition < self.partitions:
            raise ValueError(f"rank {self.t.rank}: push wants gradients of shape "
                             f"{(len(ids), wanted.dim)}, and a partition from 0 to "
                             f"{self.partitions - 1}; got shape {np.shape(grads)} and partition "
                             f"{partition}")
        if len(np.unique(ids)) < len(ids):
            raise ValueError(f"rank {self.t.rank}: push wants each id once; got {len(ids)} ids, "
                             f"but only {len(np.unique(ids))} different ids. First add the "
                             "gradients of equal ids (np.unique, np.add.at)")
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
        """Ends this rank's step. mine: the partitions of this rank. If a partition had no push in
        this step, pushes an empty message for this partition. So no server waits for a push."""
        none = np.empty(0, np.int64)
        for table, name in enumerate(self.names):
            for partition in mine:
                if (table, partition) not in self._said:
                    self.push(name, none, np.empty((0, self.tables[name].dim)), partition, 0,
                              -(2**62))
        self._said.clear()
        self.round += bool(self.n_servers)

    def cut(self, step):
        """Asks the servers to save when all pushes so far have arrived. All workers call cut(), and
        then they save."""
        for server in range(self.n_servers):
            framing.send(self.t, server, CUT, step, label="table.cut")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        why = why_left(kind, error)
        for server in range(0 if self.serves else self.n_servers):
            framing.send(self.t, server, LEAVE, body=why, label="table.left")
        # This rank waits until the servers have stopped. So no server receives later messages of
        # this rank.
        for server in range(0 if self.serves or kind else self.n_servers):
            framing.recv(self.t, "table.header", server)

    def _table(self, name):
        if name not in self.tables:
            raise ValueError(f"rank {self.t.rank}: wanted the name of a table, one of "
                             f"{', '.join(self.names)}; got {name!r}")
        return self.tables[name]

    # -- a server

    def serve(self):
        """Answers the workers until the last one has left. Yields the step of each cut, so that all
        ranks save together. Raises RuntimeError if a worker stops with an error."""
        here, cuts = set(range(self.n_servers, self.t.size)), Counter()
        workers = sorted(here)
        while here:
            src, kind, number, more, n_bytes = framing.recv(self.t, "table.header")
            if kind == LEAVE:
                here.remove(src)
                if why := recv_text(self.t, src, n_bytes, "table.left"):
                    raise RuntimeError(f"rank {self.t.rank}: worker {src} stopped with an error: "
                                       f"{why}")
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
        """With ASYNC applies the push. With SYNC keeps the push until all pushes of the step have
        arrived. Drops a push that arrives for the second time."""
        table, partition = divmod(key, self.partitions)
        if position:  # if position is 0, the partition had no records in this step
            if position <= self.seen[table, partition]:
                self.dropped += 1
                return
            self.seen[table, partition] = position
        # A worker that pulls nothing does not wait for the other workers. So `inbox` may have its
        # pushes of several steps.
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
        """Answers the pulls that need not wait. With SYNC a pull waits until the pushes of all
        steps before it have been applied."""
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
        """Returns a list with one array for each server: the indices in `ids` of the ids that this
        server has."""
        owner = mixed(ids) % np.uint64(self.n_servers)
        return [np.flatnonzero(owner == server) for server in range(self.n_servers)]

    # -- the state of the tables

    def state_dict(self):
        return {"tables": [[b.name, b.dim, *b.rule.state] for b in self.tables.values()],
                "partitions": self.partitions}

    def load_state_dict(self, state):
        if state != self.state_dict():
            raise ValueError(f"rank {self.t.rank}: wanted a snapshot of the same tables as in this "
                             f"run, {self.state_dict()}; got a snapshot of {state}. Use the same "
                             "tables and number of partitions as the run that saved it")

    def rows(self):
        """Returns {name: array} with the rows of this server, for a snapshot. A worker has no rows.
        Only rank 0 has the positions of the partitions."""
        found = {"seen": self.seen[None if self.t.rank == 0 else slice(0)].reshape(
            -1, *self.seen.shape)}
        for name, table in self.tables.items():
            found |= {f"{name}/{kind}": array for kind, array in table.rows().items()}
            found[f"{name}/now"] = np.array([table.now])
        return found

    def load_rows(self, rows):
        """Takes this server's rows from `rows`, the saved rows of all servers. The run that saved
        these rows may have had another number of servers than this run."""
        def mine(ids):
            owner = mixed(ids) % np.uint64(max(self.n_servers, 1))
            return owner == np.uint64(self.t.rank)

        self.seen[...] = rows["seen"][0]
        for name, table in self.tables.items():
            table.load_rows({key.partition("/")[2]: array for key, array in rows.items()
                             if key.startswith(f"{name}/")}, mine)
            table.now = int(rows[f"{name}/now"].max())

"""The parameter server equals data parallelism, or a replay of its own log, to the bit."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel import average_gradients
from minidl.parallel.server.rules import ASYNC, GEO, SYNC, bounded
from minidl.parallel.server.server import Server
from minidl.parallel.server.shards import HEADER_BYTES, PULL, shards
from minidl.parallel.server.worker import Worker
from minidl.plain import naive
from minidl.tensor import Tensor
from tests.comm.careful import Careful
from tests.conftest import ranks

SIZES = (2, 3, 4, 5, 8)
N_STEPS = 4
# float64 and a few hundred terms, added in another order: relative differences of some 1e-15
CLOSE = dict(rtol=1e-11, atol=1e-13)
OPTIMIZERS = {
    "sgd": lambda params: optim.SGD(params, lr=0.5, momentum=0.9),
    "adamw": lambda params: optim.AdamW(params, lr=0.05),
}


def network(dtype=np.float64):
    minidl.manual_seed(7)
    net = nn.MLP(6, 9, 3)
    return net.double() if dtype == np.float64 else net.half()


def data(step, n=13):
    g = minidl.Generator(step)
    return g.normal(n, 6, dtype=np.float64), g.integers(0, 3, n)


def share(worker, n_workers, n=13):
    """A worker's part of n samples: unequal parts, the last ones may be empty."""
    size = -(-n // n_workers)
    return slice(worker * size, min((worker + 1) * size, n))


def weights(*lengths, dtype=np.float64):
    """Tensors of small whole numbers: sums with fractions of a power of two are exact."""
    return [Tensor(np.arange(1, n + 1).astype(dtype), requires_grad=True) for n in lengths]


def in_place(t, x):
    x[...] = naive.all_reduce(t, x)


def collect(t, n_servers, params):
    """All ranks' copies of the weights, each tensor from the server that holds it."""
    arrays = [p.array.copy() for p in params]
    for server, owned in enumerate(shards(params, n_servers)):
        for i in owned:
            if t.rank == server:
                for dst in range(t.size):
                    if dst != server:
                        t.send(arrays[i], dst)
            else:
                t.recv(arrays[i], server)
    return arrays


def half_as_many(t):
    return max(1, t.size // 3)  # servers: 1 1 1 1 2 of 2 3 4 5 8 ranks


@pytest.mark.parametrize("rule", [SYNC, ASYNC], ids=repr)
@ranks(2, 3, 5, mpi=False)
def test_every_reply_is_waited_for_and_its_weights_are_kept_until_then(t, rule):
    careful, params = Careful(t), weights(4, 3)
    if t.rank == 0:
        Server(careful, params, 1, rule, OPTIMIZERS["sgd"]).serve()
    else:
        with Worker(careful, params) as worker:
            for _ in range(3):
                worker.pull()
                for p in params:
                    p.grad = np.ones(p.shape)
                worker.push()
    assert careful.pending == []


# -- sync is data parallelism


@pytest.mark.parametrize("name", OPTIMIZERS)
@ranks(*SIZES)
def test_sync_has_the_bits_of_data_parallelism(t, name):
    n_servers = half_as_many(t)
    n_workers = t.size - n_servers
    net, twin, alone = network(), network(), network()
    params = list(net.parameters())
    if t.rank < n_servers:
        Server(t, params, n_servers, SYNC, OPTIMIZERS[name]).serve()
    else:
        group = t.subgroup(range(n_servers, t.size))
        opts = [OPTIMIZERS[name](list(n.parameters())) for n in (twin, alone)]
        with Worker(t, params, n_servers) as worker:
            for step in range(N_STEPS):
                x, y = data(step)
                mine = share(t.rank - n_servers, n_workers)
                n_samples = len(x[mine])
                worker.pull()
                for model in (net, twin):
                    if n_samples:
                        F.cross_entropy(model(x[mine]), y[mine]).backward()
                t.compute(float(t.size - t.rank))  # the last rank's push is the first to arrive
                worker.push(n_samples)
                average_gradients(group, twin.parameters(), n_samples, in_place)
                F.cross_entropy(alone(x), y).backward()
                for opt in opts:
                    opt.step()
                    opt.zero_grad()
            worker.pull()
        for p, q, r in zip(params, twin.parameters(), alone.parameters()):
            np.testing.assert_array_equal(p.array, q.array)
            np.testing.assert_allclose(p.array, r.array, **CLOSE)


@ranks(*SIZES)
def test_sync_adds_half_precision_gradients_in_single(t):
    params = weights(5, dtype=np.float16)
    if t.rank == 0:
        Server(t, params, 1, SYNC, lambda shard: optim.SGD(shard, lr=1.0)).serve()
    else:
        with Worker(t, params) as worker:
            worker.pull()
            params[0].grad = np.full(5, 40_000, np.float16)  # two of them pass 65504
            worker.push()
            worker.pull()
        assert (params[0].array == np.arange(1, 6).astype(np.float16) - np.float16(40_000)).all()


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 101])
@ranks(*SIZES)
def test_sync_whatever_the_sizes(t, length):
    """Shorter than the ranks, longer, empty; data that tell every rank and element apart."""
    n_servers = min(2, t.size - 1)
    params = weights(length, 3, 0)
    if t.rank < n_servers:
        make = lambda shard: optim.SGD(shard, lr=1.0)  # noqa: E731
        Server(t, params, n_servers, SYNC, make).serve()
        return
    n_workers = t.size - n_servers
    with Worker(t, params, n_servers) as worker:
        worker.pull()
        start = [p.array.copy() for p in params]
        for k, p in enumerate(params):
            p.grad = 1000.0 * t.rank + 100 * k + np.arange(p.numel())
        worker.push()
        worker.pull()
    for k, (p, before) in enumerate(zip(params, start)):
        total = sum(1000.0 * r + 100 * k + np.arange(p.numel()) for r in range(n_servers, t.size))
        np.testing.assert_array_equal(p.array, before - total / n_workers)


# -- async is a replay of the log


def gradient(params, worker, step):
    """Of a loss that is not linear in the weights, so that the version read matters."""
    return [np.sin(p * (worker + 1)) / 8 + step / 16 for p in params]


def replay(logs, start, owners, make_optimizer):
    """The final weights, by one process: logs[s] lists (worker, version read, version met) in the
    order in which server s was pushed to; every push is an update."""
    tensors = [Tensor(a.copy(), requires_grad=True) for a in start]
    opts = [make_optimizer([tensors[i] for i in owned]) if owned else None for owned in owners]
    history = [[[tensors[i].array.copy() for i in owned]] for owned in owners]  # by version
    reads = [{} for _ in logs]  # (worker, step) -> version read
    order = []  # of the pushes to each server: (worker, step)
    for log, read in zip(logs, reads):
        steps = {}
        for worker, version, _ in log:
            read[worker, steps.setdefault(worker, 0)] = version
            steps[worker] += 1
        order.append(list(read))
    while any(len(h) <= len(o) for h, o in zip(history, order)):
        progressed = False
        for s, owned in enumerate(owners):
            at = len(history[s]) - 1
            if at == len(order[s]):
                continue
            push = order[s][at]
            if any(reads[k][push] >= len(history[k]) for k in range(len(owners))):
                continue  # it was computed from weights that are not replayed yet
            seen = [None] * len(start)
            for k, indices in enumerate(owners):
                for i, a in zip(indices, history[k][reads[k][push]]):
                    seen[i] = a
            grads = gradient(seen, *push)
            for i in owned:
                tensors[i].grad = grads[i]
            if opts[s]:
                opts[s].step()
            history[s].append([tensors[i].array.copy() for i in owned])
            progressed = True
        assert progressed, "a push read a version that did not exist yet"
    return [p.array for p in tensors]


def train(t, rule, make_optimizer, n_servers=1, lengths=(7, 1, 4), n_steps=6):
    """(params, server or None): workers of unequal speed, under the simulator."""
    params = weights(*lengths)
    if t.rank < n_servers:
        server = Server(t, params, n_servers, rule, make_optimizer)
        server.serve()
        return params, server
    with Worker(t, params, n_servers) as worker:
        for step in range(n_steps):
            worker.pull()
            t.compute(1.0 + 0.3 * t.rank)
            for p, g in zip(params, gradient([p.array for p in params], t.rank, step)):
                p.grad = g
            worker.push()
    return params, None


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rule", [ASYNC, bounded(1)], ids=lambda rule: rule.name)
@ranks(*SIZES)
def test_async_has_the_bits_of_a_replay_of_its_log(t, rule, name):
    n_servers = half_as_many(t)
    start = [p.array for p in weights(7, 1, 4)]
    params, server = train(t, rule, OPTIMIZERS[name], n_servers)
    logs = []
    for s in range(n_servers):  # everybody replays, with the servers' logs
        n_pushes = 6 * (t.size - n_servers)
        log = np.array([row[:3] for row in server.log]) if t.rank == s else np.zeros((n_pushes, 3))
        logs.append(naive.broadcast(t.subgroup([s, *(r for r in range(t.size) if r != s)]),
                                    log.astype(np.int64)).tolist())
    replayed = replay(logs, start, shards(params, n_servers), OPTIMIZERS[name])
    for a, b in zip(collect(t, n_servers, params), replayed):
        np.testing.assert_array_equal(a, b)


def test_a_simulated_run_is_the_same_every_time():
    def body(t):
        params, server = train(t, ASYNC, OPTIMIZERS["sgd"])
        return server and (server.log, params[0].array.tolist())

    assert simulate(5, body)[0] == simulate(5, body)[0]


@ranks(3, 4)
def test_a_reply_holds_the_weights_of_its_version(t):
    """Also if they change before the receiver takes it; 4 MB, which MPI does not buffer."""
    params = [Tensor(np.zeros(1_000_000, np.float32), requires_grad=True)]
    if t.rank == 0:
        Server(t, params, 1, ASYNC, lambda shard: optim.SGD(shard, lr=1.0)).serve()
        return
    with Worker(t, params) as worker:
        if t.rank == 1:
            worker._request(PULL, 0)
            t.send(np.zeros(1), 2)
            t.recv(np.empty(1), 2)  # worker 2 has seen its own update
            values = worker._receive(0)
            assert (values == -worker.versions[0]).all()
        if t.rank == 2:
            t.recv(np.empty(1), 1)
            params[0].grad = np.ones(1_000_000, np.float32)
            worker.push()
            worker.pull()
            assert (params[0].array == -1).all()
            t.send(np.zeros(1), 1)


# -- bytes


@pytest.mark.parametrize("rule", [SYNC, ASYNC, bounded(1)], ids=lambda rule: rule.name)
@ranks(*SIZES)
def test_a_server_link_carries_2_n_k_a_step(t, rule):
    n_servers = half_as_many(t)
    ledger = Ledger(t)
    params, _ = train(ledger, rule, OPTIMIZERS["sgd"], n_servers, n_steps=5)
    n_workers = t.size - n_servers
    sizes = [sum(params[i].nbytes for i in owned) for owned in shards(params, n_servers)]
    pulled, pushed = (ledger.count(label=f"param_server.{kind}") for kind in ("pull", "push"))
    header = ledger.count(label="param_server.header")
    requests, replies = 2 * 5 + 1, 5  # pull and push, and one to leave; one for each pull
    if t.rank < n_servers:
        K = sizes[t.rank]
        assert pulled.bytes_sent + pushed.bytes_received == 5 * 2 * n_workers * K
        assert (pulled.bytes_received, pushed.bytes_sent) == (0, 0)
        assert header.bytes_received == HEADER_BYTES * requests * n_workers
        assert header.bytes_sent == HEADER_BYTES * replies * n_workers
    else:
        K = sum(sizes)
        assert pulled.bytes_received == pushed.bytes_sent == 5 * K
        assert header.bytes_sent == HEADER_BYTES * requests * n_servers
        assert header.bytes_received == HEADER_BYTES * replies * n_servers
    total = ledger.count()
    assert total.bytes_sent == pulled.bytes_sent + pushed.bytes_sent + header.bytes_sent


def test_shards_are_balanced_and_hold_every_tensor_once():
    for lengths in ([5, 5, 4, 3, 3], [100], [1] * 7, [9, 8, 7, 6, 5, 4, 3, 2, 1], [0, 0]):
        for n_servers in (1, 2, 3):
            params = weights(*lengths)
            owned = shards(params, n_servers)
            assert sorted(i for indices in owned for i in indices) == list(range(len(lengths)))
            load = [sum(lengths[i] for i in indices) for indices in owned]
            best = max(max(lengths), math.ceil(sum(lengths) / n_servers))  # nobody does better
            assert max(load) <= (4 / 3 - 1 / (3 * n_servers)) * best


# -- what is refused


def test_what_cannot_be_served_is_an_error_at_once():
    half = Tensor(np.ones(2, np.float16), requires_grad=True)
    sgd = OPTIMIZERS["sgd"]

    def body(t):
        params = weights(2, 3)
        with pytest.raises(ValueError, match="one server and one worker; got n_servers=2"):
            Worker(t, params, 2)
        with pytest.raises(ValueError, match="got float16, float64"):
            Server(t, [*params, half], 1, ASYNC, sgd)
        with pytest.raises(ValueError, match="sync wants an optimizer; got no"):
            Server(t, params, 1, SYNC) if t.rank == 0 else Server(t, params, 2, SYNC)
        with pytest.raises(ValueError, match="geo wants optimizer=None; got an"):
            Server(t, params, 1, GEO, sgd)

    simulate(2, lambda t: body(t) if t.rank == 0 else None)


def test_sync_refuses_a_second_push_without_a_pull():
    def body(t):
        params = weights(4)
        if t.rank == 0:
            Server(t, params, 1, SYNC, OPTIMIZERS["sgd"]).serve()
        else:
            with Worker(t, params) as worker:
                worker.pull()
                for _ in range(2 if t.rank == 1 else 0):
                    worker.push()
                worker.pull()

    with pytest.raises(RankFailed, match="the rule sync wants .* got two pushes of worker 1"):
        simulate(3, body)

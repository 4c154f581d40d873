"""Links: what a network is, how it is written, and what the simulator's clock makes of it."""

import pickle
import re

import numpy as np
import pytest

from minidl.comm import cost, hierarchical, ring, simulate, tree
from minidl.comm.transport.background import Background
from minidl.comm.transport.links import Link, Links, Port
from minidl.plain import naive

# Powers of two, so that sums of them are exact in floating point.
ALPHA, BETA = 2.0**-10, 2.0**-20
FAST, SLOW = (2.0**-14, 2.0**-24), (2.0**-8, 2.0**-20)


# -- what a network is


def test_pairs_nodes_and_defaults():
    links = Links.nodes([[0, 1, 4], [2], [3, 5]], FAST, SLOW, pairs={(0, 1): (1.0, 2.0)})
    assert [links.node_of(r) for r in range(6)] == [0, 0, 1, 2, 0, 2]
    assert links.link(0, 4) == links.link(1, 0) == FAST  # the pair (0, 1) has a direction
    assert links.link(0, 1) == (1.0, 2.0)
    assert links.link(4, 2) == links.link(2, 3) == SLOW
    assert Links.nodes(3, FAST, SLOW).node_of(7) == 2
    uniform = Links.uniform(ALPHA, BETA)
    assert uniform.link(3, 9) == (ALPHA, BETA)


def test_nodes_share_a_nic_unless_told_otherwise():
    links = Links.nodes(2, FAST, SLOW)
    assert links.ports(0, 2) == links.ports(1, 3) == (-1, -2)
    assert links.ports(0, 1) == (0, 1)
    assert Links.nodes(2, FAST, SLOW, nic="rank").ports(0, 2) == (0, 2)
    assert Links.uniform(ALPHA, BETA).ports(0, 2) == (0, 2)


def test_a_description_cannot_change_and_travels():
    links = Links.nodes(2, FAST, SLOW, straggler={1: 3.0}, pairs={(0, 1): (1.0, 2.0)})
    with pytest.raises(AttributeError):
        links.nic = "rank"
    assert pickle.loads(pickle.dumps(links)) == links and hash(links) == hash(links)
    assert links.slowdown(1) == 3.0 and links.slowdown(0) == 1.0


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Links.uniform(-1e-6, 0.0), "at least 0; got alpha=-1e-06, beta=0.0"),
        (lambda: Links.uniform(0.0, float("nan")), "finite and at least 0"),
        (lambda: Links.nodes([[0, 1], [1]], FAST, SLOW), "every rank from 0 on exactly once"),
        (lambda: Links.nodes([[0, 1], [3]], FAST, SLOW), "every rank from 0 on exactly once"),
        (lambda: Links.nodes(0, FAST, SLOW), "at least one rank; got 0"),
        (lambda: Links.nodes(2, FAST, (1.0, float("inf"))), "finite and at least 0"),
        (lambda: Links.nodes(2, FAST, SLOW, nic="both"), "got 'both'"),
        (lambda: Links.uniform(0.0, 0.0, straggler={0: 0.0}), "got 0.0 for rank 0"),
        (lambda: Links.nodes([[0, 1], [2]], FAST, SLOW).check_ranks(4), "got 4 ranks"),
        (lambda: Links.uniform(0.0, 0.0, straggler={4: 2.0}).check_ranks(4), "contain rank 4"),
        (lambda: Links.uniform(0.0, 0.0, {(0, 4): FAST}).check_ranks(4), "contain rank 4"),
        (lambda: simulate(4, len, links=Links.uniform(0, 0, {(0, 4): FAST})), "contain rank 4"),
        (lambda: simulate(4, len, links=Links.uniform(0, 0), beta=1.0), "got links together"),
    ],
)
def test_what_no_network_can_be_is_an_error(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_a_network_reads_as_a_person_would_write_it():
    assert str(Links.uniform(50e-6, 8e-9)) == "1 Gbit/s, 50 us"
    assert str(Link(0.0, 0.0)) == "infinite bit/s, 0 s"
    links = Links.nodes(4, (5e-6, 8e-10), (50e-6, 8e-9), straggler={2: 3.0})
    assert str(links) == (
        "nodes=4 ranks each, intra=10 Gbit/s, 5 us, inter=1 Gbit/s, 50 us, nic=node, straggler=2:3"
    )
    assert "nodes=[0, 2]+[1, 3]" in str(Links.nodes([[0, 2], [1, 3]], FAST, SLOW))


# -- ports


def test_a_port_serves_one_message_at_a_time():
    port = Port()
    assert [port.send(1.0, 4.0), port.send(2.0, 4.0), port.send(20.0, 4.0)] == [1.0, 5.0, 20.0]
    assert [port.receive(1.0, 4.0), port.receive(2.0, 4.0), port.receive(20.0, 4.0)] == [5, 9, 24]
    assert port.receive(12.0, 4.0) == 16.0, "wholly before the last busy period"
    assert port.receive(17.0, 4.0) == 28.0, "overlaps it"


# -- the simulator's clock


@pytest.mark.parametrize("fn", [ring.all_reduce, tree.all_reduce, naive.all_reduce])
def test_uniform_links_are_alpha_and_beta(fn):
    def body(t):
        fn(t, np.ones(37, "f4"))
        return t.time()

    links = Links.uniform(ALPHA, BETA)
    assert simulate(5, body, links=links) == simulate(5, body, alpha=ALPHA, beta=BETA)


def exchange(t, n_bytes=64):
    """Every rank of the first half sends to its partner in the second; the receivers' clocks."""
    half = t.size // 2
    if t.rank < half:
        t.send(np.zeros(n_bytes, "u1"), t.rank + half)
        return None
    t.recv(np.zeros(n_bytes, "u1"), t.rank - half)
    return t.time()


@pytest.mark.parametrize("half", [1, 2, 3, 4])
def test_the_ranks_of_a_node_share_its_nic(half):
    alpha, beta = SLOW
    links = Links.nodes(half, FAST, SLOW)
    one_after_another = [alpha + (k + 1) * 64 * beta for k in range(half)]
    assert simulate(2 * half, exchange, links=links)[half:] == one_after_another
    links = Links.nodes(half, FAST, SLOW, nic="rank")
    assert simulate(2 * half, exchange, links=links)[half:] == [alpha + 64 * beta] * half


@pytest.mark.parametrize("rendezvous_bytes", [None, 0])
@pytest.mark.parametrize("g", [1, 2, 3])
def test_a_nic_is_busy_until_all_bytes_are_across(g, rendezvous_bytes):
    # Everybody sends to everybody on the other node: g*g messages each way, never a gap.
    def body(t):
        others = range(g, 2 * g) if t.rank < g else range(g)
        incoming = [t.irecv(np.zeros(64, "u1"), src) for src in others]
        outgoing = [t.isend(np.zeros(64, "u1"), dst) for dst in others]
        for request in incoming + outgoing:
            request.wait()
        return t.time()

    alpha, beta = SLOW
    network = {"links": Links.nodes(g, FAST, SLOW), "rendezvous_bytes": rendezvous_bytes}
    clocks = simulate(2 * g, body, **network)
    assert max(clocks) == alpha + g * g * 64 * beta
    assert simulate(2 * g, body, **network) == clocks


def test_a_nic_serves_who_comes_first_on_the_clock_not_in_the_program():
    # Rank 0 runs first here, but sends at 1 s; rank 1's message, sent at 0, need not wait for it.
    def body(t):
        if t.rank == 0:
            t.compute(1.0)
        return exchange(t)

    alpha, beta = SLOW
    clocks = simulate(4, body, links=Links.nodes(2, FAST, SLOW))
    assert clocks[2:] == [1.0 + alpha + 64 * beta, alpha + 64 * beta]


def test_the_receiving_nic_serves_who_arrives_first():
    # Three nodes; ranks 2 and 4 send to node 0. Rank 0 waits first, for the later message.
    def body(t):
        if t.rank in (2, 4):
            t.compute(1.0 if t.rank == 2 else 0.0)
            t.send(np.zeros(64, "u1"), 0 if t.rank == 2 else 1)
        elif t.rank in (0, 1):
            t.recv(np.zeros(64, "u1"), 2 if t.rank == 0 else 4)
        return t.time()

    alpha, beta = SLOW
    clocks = simulate(6, body, links=Links.nodes(2, FAST, SLOW))
    assert clocks[:2] == [1.0 + alpha + 64 * beta, alpha + 64 * beta]


def test_a_message_on_its_way_waits_its_turn_at_the_receiving_nic():
    # When rank 0 asks, its message (sent at 1) is on its way; rank 1's is, too, and will begin to
    # arrive half a message earlier.
    alpha, beta = SLOW
    d = 64 * beta

    def body(t):
        x = np.zeros(64, "u1")
        if t.rank == 0:
            t.compute(1.0 + alpha / 2)
            t.recv(x, 2)
        elif t.rank == 1:
            t.recv(x, 4)
        elif t.rank in (2, 4):
            t.compute(1.0 if t.rank == 2 else 1.0 - d / 2)
            t.send(x, 0 if t.rank == 2 else 1)
        return t.time()

    clocks = simulate(6, body, links=Links.nodes(2, FAST, SLOW))
    first = 1.0 - d / 2 + alpha + d
    assert clocks[:2] == [first + d, first]


def test_sendrecv_takes_its_turn_at_a_nic_too():
    # Rank 2's message is there when rank 2 runs, at 1; rank 3 runs after it, but at 0.
    def body(t):
        if t.rank == 2:
            t.compute(1.0)
        x = np.zeros(64, "u1")
        t.sendrecv(x, (t.rank + 2) % 4, x.copy(), (t.rank + 2) % 4)
        return t.time()

    alpha, d = SLOW[0], 64 * SLOW[1]
    clocks = simulate(4, body, links=Links.nodes(2, FAST, SLOW))
    # node 1 receives rank 0's, then rank 1's; rank 2 waits for no more than its own sending
    assert clocks == [1.0 + alpha + d, alpha + d, 1.0 + d, alpha + d + d]


def test_traffic_inside_a_node_does_not_use_the_nic():
    def body(t):
        into = np.zeros(64, "u1")
        if t.rank == 0:
            requests = [t.isend(into, 2), t.isend(into, 1)]
            for request in requests:
                request.wait()
        elif t.rank < 3:
            t.recv(into, 0)
        return t.time()

    (slow, b), (fast, c) = SLOW, FAST
    clocks = simulate(4, body, links=Links.nodes(2, FAST, SLOW))
    assert clocks[1:3] == [fast + 64 * c, slow + 64 * b]
    clocks = simulate(4, body, links=Links.nodes(2, FAST, SLOW, nic="rank"))
    assert clocks[1:3] == [64 * b + fast + 64 * c, slow + 64 * b], "one port for all, in order"


def test_one_slow_pair_delays_the_whole_ring():
    def body(t):
        ring.all_reduce(t, np.zeros(256, "u1"))
        return t.time()

    n, beta = 4, SLOW[1]
    fast = simulate(n, body, links=Links.uniform(*FAST))
    slow = simulate(n, body, links=Links.uniform(*FAST, pairs={(2, 3): SLOW}))
    assert max(fast) == cost.ring_all_reduce(n, 256, *FAST).time_s
    # Six messages queue at the slow link's port; all of them slow would be the worst case.
    assert max(fast) + 6 * 64 * beta < max(slow) <= cost.ring_all_reduce(n, 256, *SLOW).time_s


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_straggler_delays_everybody_by_its_own_delay(n):
    def body(t):
        t.compute(1.0)
        ring.all_reduce(t, np.zeros(24 * 64, "u1"))
        return t.time()

    formula = cost.ring_all_reduce(n, 24 * 64, ALPHA, BETA).time_s
    for rank in {0, 1, n - 1}:
        links = Links.uniform(ALPHA, BETA, straggler={rank: 3.0})
        assert max(simulate(n, body, links=links)) == 3.0 + formula
    assert max(simulate(n, body, links=Links.uniform(ALPHA, BETA))) == 1.0 + formula


@pytest.mark.parametrize("compute_s", [2.0**-12, 0.5])  # less and more than a bucket's all-reduce
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("times", [1.0, 2.0])
def test_overlapped_buckets_take_the_longer_of_both_and_one_end(n, compute_s, times):
    k, n_bytes = 5, 8 * 64

    def overlapped(t):
        with Background(t) as background:
            for _ in range(k):
                t.compute(compute_s)
                background.submit(ring.all_reduce, np.zeros(n_bytes, "u1"))
        return t.time()

    def one_after_another(t):
        for _ in range(k):
            t.compute(compute_s)
            ring.all_reduce(t, np.zeros(n_bytes, "u1"))
        return t.time()

    links = Links.uniform(ALPHA, BETA, straggler={n - 1: times})
    reduce_s = cost.ring_all_reduce(n, n_bytes, ALPHA, BETA).time_s
    slowest_s = compute_s * times
    # The first bucket must be computed and the last one reduced; between them the longer counts.
    formula = slowest_s + (k - 1) * max(slowest_s, reduce_s) + reduce_s
    assert max(simulate(n, overlapped, links=links)) == formula
    # One after another a straggler costs less: whoever comes last finds all messages waiting, and
    # is done with the ring before the others.
    late = simulate(n, one_after_another, links=links)
    formula = k * (slowest_s + reduce_s)
    assert max(late) == formula if times == 1.0 or n == 2 else max(late) < formula


@pytest.mark.parametrize("nic", ["rank", "node"])
@pytest.mark.parametrize("m, g", [(2, 2), (2, 4), (3, 2), (4, 4)])
def test_what_a_hierarchy_saves_and_what_a_shared_nic_takes_back(m, g, nic):
    n, n_bytes = m * g, 8 * 48 * 1024
    links = Links.nodes(g, FAST, SLOW, nic=nic)

    def body(t, name):
        x = np.zeros(n_bytes, "u1")
        groups = hierarchical.groups(t, g)
        start = t.time()
        if name == "flat":
            ring.all_reduce(t, x)
        else:
            hierarchical.all_reduce(t, x, groups=groups)
        return t.time() - start

    flat = max(simulate(n, body, "flat", links=links))
    hierarchy = max(simulate(n, body, "hierarchical", links=links))
    share = g if nic == "node" else 1
    formula = cost.hierarchical_all_reduce(m, g, n_bytes, FAST, SLOW, share=share)
    assert hierarchy == pytest.approx(formula.time_s, rel=1e-12)  # rounding: sixths and twelfths
    # A flat ring leaves each node by one rank, so it never shares a NIC. All its 2(n-1) messages
    # cross the slow link; at most each is waited for.
    bytes_alone = 2 * (n - 1) / n * n_bytes * SLOW[1]
    assert bytes_alone < flat < cost.ring_all_reduce(n, n_bytes, *SLOW).time_s
    assert hierarchy < flat
    # Where bytes count and not latency, g-fold savings remain with a NIC per rank. A shared NIC
    # carries 2(m-1)/m K either way and the flat ring 2(n-1)/n K: little is left to save.
    wide = Links.nodes(g, (0.0, 0.0), (0.0, SLOW[1]), nic=nic)
    flat = max(simulate(n, body, "flat", links=wide))
    hierarchy = max(simulate(n, body, "hierarchical", links=wide))
    saved = (1 - 1 / n) / (1 - 1 / m) * (1 if nic == "node" else g)
    assert flat / hierarchy == pytest.approx(saved, rel=1e-12)

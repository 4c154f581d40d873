"""Buckets close at their cap, leave in order, and follow the order in which gradients arrive."""

import numpy as np
import pytest

from minidl import nn
from minidl.comm import ring
from minidl.comm.observe import ledger
from minidl.parallel import DataParallel
from minidl.parallel.data import header
from minidl.parallel.data.bucket import assign
from tests.conftest import ranks

MIB = 1 << 20


def test_golden_buckets_of_twelve_layers_of_4_mib():
    """PyTorch's reducer, measured: caps of 25 MiB and 1 MiB for the first give 4 | 28 | 16 MiB."""
    runs = assign([4 * MIB] * 12, cap=25 * MIB, first_cap=MIB)
    assert [4 * len(r) for r in runs] == [4, 28, 16]


@pytest.mark.parametrize("sizes", [[], [5], [1] * 7, [10, 1, 1, 10, 1], [0, 0, 3]])
@pytest.mark.parametrize("cap", [1, 3, 100])
def test_every_parameter_is_in_one_bucket_in_order(sizes, cap):
    runs = assign(sizes, cap)
    assert [i for run in runs for i in run] == list(range(len(sizes)))
    for run in runs[:-1]:  # closed as soon as the cap is reached, not later
        assert sum(sizes[i] for i in run) >= cap > sum(sizes[i] for i in run[:-1])


class Backwards(nn.Module):
    """Uses its layers in the reverse order of definition."""

    def __init__(self):
        super().__init__()
        self.last, self.middle, self.first = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


@ranks(1, 2, 3)
def test_buckets_are_rebuilt_once_in_the_order_of_arrival(t):
    net = Backwards()
    model = DataParallel(net, t, bucket_bytes=1, first_bucket_bytes=1)
    guess = [b.params[0] for b in model.reducer.buckets]
    assert guess == [net.first.weight, net.middle.weight, net.last.weight]
    for _ in range(3):
        model(np.ones((2, 4), np.float32)).sum().backward()
        observed = [b.params[0] for b in model.reducer.buckets]
        assert observed == [net.last.weight, net.middle.weight, net.first.weight]


@ranks(2, 3, 4)
def test_messages_and_bytes_are_the_rings_for_the_header_and_each_bucket(t):
    t = ledger.Ledger(t)
    net = nn.MLP(7, 5, 3)
    model = DataParallel(net, t, bucket_bytes=100, first_bucket_bytes=100)
    x = np.ones((2, 7), np.float32)
    model(x).sum().backward()
    buckets = model.reducer.buckets
    # in order of arrival (bias after weight), closed at 100 B: 60 + 12 + 140 B and 20 B
    assert sorted(b.flat.nbytes for b in buckets) == [20, 212]
    t.reset()
    model(x).sum().backward()
    count = t.count(label="ring.all_reduce")
    alone = ledger.Ledger(t)
    header.share(alone, header.announce(2, range(4), set()))
    want = header.bytes_sent(4, t.size, t.rank)
    assert alone.bytes_sent == want
    want += sum(ring.bytes_sent(n_elems, 4, t.size, t.rank) for n_elems in (53, 5))
    assert count.bytes_sent == want == model.bytes_sent()
    messages = alone.count(label="ring.all_reduce").messages_sent
    assert count.messages_sent == messages + len(buckets) * 2 * (t.size - 1)
    assert t.bytes_sent == want + alone.bytes_sent  # and nothing else travels


@ranks(2)
def test_the_bucket_size_does_not_change_the_bytes_of_gradients(t):
    sent = []
    for cap in (1, 50, 1 << 20):
        counting = ledger.Ledger(t)
        model = DataParallel(nn.MLP(6, 4, 2), counting, bucket_bytes=cap, first_bucket_bytes=cap)
        model(np.ones((2, 6), np.float32)).sum().backward()
        counting.reset()
        model(np.ones((2, 6), np.float32)).sum().backward()
        sent.append(counting.count(label="ring.all_reduce").bytes_sent)
    assert len(set(sent)) == 1


def test_communication_hides_behind_backward_on_the_modelled_clock():
    """Four equal layers: with overlap the step takes the backward plus the last bucket's time."""
    from minidl.comm import simulate

    n_layers, n_ranks, work, alpha, beta = 4, 2, 1.0, 0.1, 1e-4

    def body(t, overlap):
        # bucket_bytes=1: each layer's weight (32 * 32 floats) is a bucket
        net = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(n_layers)))
        for p in net.parameters():  # this layer's backward took `work` seconds
            p.on_grad_ready(lambda p: t.compute(work))
        model = DataParallel(net, t, bucket_bytes=1, first_bucket_bytes=1, overlap=overlap)
        for _ in range(2):  # the first step uses the guessed order and rebuilds
            start = t.time()
            model(np.ones((1, 32), np.float32)).sum().backward()
        return t.time() - start

    bucket = 2 * (n_ranks - 1) * alpha + 32 * 32 * 4 * beta  # 0.2 + 0.41 s < work
    def of_header(t):
        header.share(t, header.announce(0, range(n_layers), set()))
        return t.time()

    ahead = simulate(n_ranks, of_header, alpha=alpha, beta=beta)[0]
    times = {overlap: simulate(n_ranks, body, overlap, alpha=alpha, beta=beta)[0]
             for overlap in (True, False)}
    # some twenty additions of seconds
    assert times[True] == pytest.approx(n_layers * work + bucket, rel=1e-12)
    assert times[False] == pytest.approx(n_layers * (work + bucket) + ahead, rel=1e-12)


@ranks(3)
def test_any_all_reduce_can_be_passed_in(t):
    calls = []

    def counted(t, x):
        calls.append(x.size)
        return ring.all_reduce(t, x)

    model = DataParallel(nn.Linear(3, 2), t, all_reduce=counted)
    model(np.ones((1, 3), np.float32)).sum().backward()
    sent, calls[:] = list(calls), []
    header.share(t, header.announce(1, "ab", set()), counted)
    assert sent == [*calls, 8]  # the header, then one bucket

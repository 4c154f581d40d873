"""An offloaded run goes on from its snapshots, and from those of runs that are not offloaded."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.parallel import Offload, Zero1, Zero2, Zero3
from minidl.snapshot import snapshot
from tests.devices import host, put
from tests.on_device import there
from tests.parallel.zero.test_offload import (
    OPTIMIZERS, assert_same, backward, bits, masters, network,
)

pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("delay_after", [None, 1])
def test_a_snapshot_of_an_offloaded_run_goes_on_to_the_same_bits(half, delay_after, tmp_path):
    def make(seed):
        model = network(half)
        minidl.manual_seed(seed)
        for p in model.parameters():
            p.array[...] = put(minidl.randn(*p.shape).array, p.device)
        return model, Offload(OPTIMIZERS["AdamW"](model.parameters()), bucket_bytes=100,
                              delay_after=delay_after)

    def train(model, off, steps):
        for step in steps:
            off.zero_grad()
            backward(model, step)
            off.step(unscale=1 / 64)

    model, off = make(1)
    train(model, off, range(3))
    snapshot.save(tmp_path, 3, model=model, optimizer=off)
    train(model, off, range(3, 6))
    again, other = make(2)
    snapshot.load(tmp_path, model=again, optimizer=other)
    train(again, other, range(3, 6))
    for o in (off, other):
        o.close()
    assert_same(bits(model), bits(again))
    assert_same(masters(off), masters(other))


@pytest.mark.parametrize("half", [True, False])
def test_runs_with_and_without_offload_load_each_others_snapshots(half, tmp_path):
    def run(t, offload, seed, stage=Zero2):
        minidl.manual_seed(seed)
        model = there(nn.Linear(5, 3))
        model = stage(model.half() if half else model, t)
        optimizer = OPTIMIZERS["AdamW"](model.shards())
        return model, Offload(optimizer) if offload else optim.use_master_weights(optimizer)

    def write(t, offload):
        model, optimizer = run(t, offload, 1)
        for leaf in model.shards():
            leaf.grad = leaf._xp.full(leaf.shape, 0.5, leaf.dtype)
        optimizer.step()
        model.gather()
        snapshot.save(tmp_path / str(offload), 1, model=model, optimizer=optimizer)
        result = bits(model)
        model.close()
        return result

    def read(t, offload, written, stage=Zero1):
        model, optimizer = run(t, offload, 2, stage)
        snapshot.load(tmp_path / str(written), model=model, optimizer=optimizer)
        if offload:
            optimizer.finish()
        result = bits(model), [host(p) for p in optimizer.parameters()]
        model.close()
        return result

    for offload in (False, True):
        wanted = simulate(3, write, offload)[0]
        if offload and not half:  # the masters are no one's but an offloaded run's
            with pytest.raises(RankFailed, match="wrap the optimizer in parallel.Offload"):
                simulate(2, read, False, offload)
            continue
        for weights, leaves in simulate(2, read, not offload, offload, Zero3):
            assert_same(weights, wanted)
            assert all(np.isfinite(x).all() and (x.dtype == np.float32) for x in leaves)

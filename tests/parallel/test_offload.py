"""An offloaded optimizer takes the steps of the one on the device; bytes and lanes are counted."""

import json
import time

import numpy as np
import pytest

import minidl
from minidl import nn, optim, snapshot
from minidl.amp import GradScaler
from minidl.comm import ring_blocks, simulate
from minidl.comm.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Offload, Zero1, Zero2, Zero3
from minidl.parallel.lanes import Modelled, Threads
from tests.conftest import ranks

SIZES = [(9, 7), (7, 7), (7, 3)]


def network(half):
    minidl.manual_seed(0)
    model = nn.Sequential(*[m for a, b in SIZES for m in (nn.Linear(a, b), nn.Tanh())][:-1])
    return model.half() if half else model


def backward(model, step, rank=0, scale=64.0):
    """A gradient that depends on the step and the rank; fp16 ones are kept from vanishing."""
    rng = np.random.default_rng([step, rank])
    dtype = next(iter(model.parameters())).dtype
    x = minidl.tensor(rng.normal(size=(4, 9)).astype(dtype))
    y = minidl.tensor(rng.integers(0, 3, 4))
    (F.cross_entropy(model(x).float(), y) * scale).backward()


def bits(model):
    return [np.array(array) for array in model.state_dict().values()]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def masters(optimizer):
    return [np.array(p.data) for p in optimizer.parameters()]


OPTIMIZERS = {"AdamW": lambda params: optim.AdamW(params, lr=1e-2),
              "SGD": lambda params: optim.SGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1)}
LANES = {"modelled": Modelled, "threads": Threads}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 200, 1 << 20])
def test_the_bits_are_those_of_the_optimizer_on_the_device(lanes, kind, half, bucket_bytes):
    model, there = network(half), network(half)
    plain = optim.use_master_weights(OPTIMIZERS[kind](model.parameters()))
    off = Offload(OPTIMIZERS[kind](there.parameters()), LANES[lanes](), bucket_bytes)
    for step in range(4):
        for m, o in ((model, plain), (there, off)):
            o.zero_grad()
            backward(m, step)
            backward(m, step + 10)  # gradients add up over two backwards
            o.step(unscale=1 / 128)
        assert_same(bits(model), bits(there))
    assert_same(masters(plain), masters(off)[:len(masters(plain))])
    off.close()


@pytest.mark.parametrize("half, bytes_each", [(True, 2), (False, 4)])
@pytest.mark.parametrize("n_backwards", [1, 3])
def test_bytes_are_the_formulas(half, bytes_each, n_backwards):
    model = network(half)
    n = sum(p.numel() for p in model.parameters())
    off = Offload(OPTIMIZERS["AdamW"](model.parameters()))
    for step in range(3):
        for _ in range(n_backwards):
            backward(model, step)
        assert off.lanes.bytes["down"] == (step + 1) * n_backwards * bytes_each * n
        off.step()
        assert off.lanes.bytes["up"] == (step + 1) * bytes_each * n
    # device: weights alone. host: weights, gradients, m, v; and masters beside float16 ones
    assert off.memory() == {"device": bytes_each * n,
                            "host": (2 * bytes_each + 8 + (4 if half else 0)) * n}
    off.close()


STAGES = {1: Zero1, 2: Zero2, 3: Zero3}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("half", [True, False])
@ranks(1, 2, 3, 4, 5, 8)
def test_with_shards_each_rank_moves_its_own(t, stage, half):
    def train(offloaded):
        model = STAGES[stage](network(half), t)
        optimizer = OPTIMIZERS["AdamW"](model.shards())
        optimizer = Offload(optimizer) if offloaded else optim.use_master_weights(optimizer)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step, t.rank)
            if offloaded:  # they went down behind backward: nobody has asked for them
                own = sum(s.nbytes for s in model.shards())
                assert optimizer.lanes.bytes["down"] == (step + 1) * own
                assert all(s.grad is None for s in model.shards())
            optimizer.step(unscale=1 / 64)
            model.gather()
        if offloaded:
            assert optimizer.lanes.bytes == {"down": 3 * own, "up": 3 * own}
            with pytest.raises(RuntimeError, match="offloaded optimizer they are on the host"):
                model.clip_grad_norm_(1.0)
            optimizer.close()
        result = bits(model)
        model.close()
        return result

    assert_same(train(False), train(True))


@ranks(1, 2, 3)
def test_averaged_gradients_go_down_not_a_ranks_own(t):
    def train(offloaded):
        model = DataParallel(network(True), t, all_reduce=ring_blocks.all_reduce)
        optimizer = OPTIMIZERS["AdamW"](model.parameters())
        # small buckets: full long before the last gradient, with which the averages come
        optimizer = Offload(optimizer, bucket_bytes=1) if offloaded else \
            optim.use_master_weights(optimizer)
        for step in range(2):
            optimizer.zero_grad()
            backward(model, step, t.rank)
            optimizer.step(unscale=1 / 64)
        model.close()
        return bits(model)

    assert_same(train(False), train(True))


class Dawdling(Threads):
    """Whatever is not waited for comes too late: gradients after step() has begun, an update after
    the next gradients, the copy up after the next update."""

    late_s = {"down": 5e-4, "host": 2e-3, "up": 4e-3}

    def run(self, lane, fn, *args, **options):
        return super().run(lane, lambda: (time.sleep(self.late_s[lane]), fn()), *args, **options)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("delay_after", [0, 2])
def test_a_delayed_update_is_adam_with_gradients_one_step_old(lanes, delay_after):
    model, there = network(True), network(True)
    plain = optim.use_master_weights(OPTIMIZERS["AdamW"](model.parameters()))
    lanes = Modelled() if lanes == "modelled" else Dawdling()
    off = Offload(OPTIMIZERS["AdamW"](there.parameters()), lanes, 100, delay_after=delay_after)
    waiting = None  # the weights after an update that the device has not seen
    for step in range(6):
        before = bits(there)
        for m, o in ((model, plain), (there, off)):
            o.zero_grad()
            backward(m, step)
        # by definition: the device sees the weights from before the update, at the next step
        held = bits(model)
        plain.step(unscale=1 / 64)
        new = bits(model)
        off.step(unscale=1 / 64)
        if step >= delay_after:
            for p, array in zip(model.parameters(), held if step == delay_after else waiting,
                                strict=True):
                p.data = array  # what backward of the next step will use
            waiting = new
            # the masters go on from the new ones; what the device has does not matter to them
        assert_same(bits(there), bits(model))
        if step == delay_after:
            assert_same(bits(there), before)  # the first delayed step is skipped
        else:
            assert any((a != b).any() for a, b in zip(bits(there), before, strict=True))
    off.finish()
    assert_same(bits(there), waiting)
    assert_same(masters(plain), masters(off))
    off.close()


def test_a_skipped_step_leaves_everything_and_clipping_is_of_the_whole():
    model, there = network(True), network(True)
    plain = optim.use_master_weights(OPTIMIZERS["AdamW"](model.parameters()))
    off = Offload(OPTIMIZERS["AdamW"](there.parameters()), bucket_bytes=100)
    for m, o in ((model, plain), (there, off)):
        scaler = GradScaler(2.0**6)
        for step in range(4):
            o.zero_grad()
            with np.errstate(invalid="ignore"):  # inf times zero
                backward(m, step, scale=np.inf if step == 2 else scaler.get_scale())
            before = bits(m)
            assert scaler.step(o, max_norm=0.01) == (step != 2)
            scaler.update()
            if step == 2:
                assert_same(bits(m), before)
        o.zero_grad()
        backward(m, 5, scale=scaler.get_scale())
        scaler.unscale_(o)
        scaler.step(o)
    assert_same(bits(model), bits(there))
    off.close()


def lane_spans(lanes):
    return {lane: [(label, start, end) for where, label, start, end in lanes.spans
                   if where == lane] for lane in ("device", "down", "host", "up")}


def test_modelled_lanes_overlap_as_the_formula_says(tmp_path):
    # three equal layers: a bucket each, of b bytes down and up; c seconds of backward for each,
    # u of update, d of copy
    minidl.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(3)]).half()
    alpha, beta, c, n = 1e-6, 1e-8, 4e-6, 256
    d = 2 * n * beta
    for u_each in (2e-8, 1e-9):  # the update is slower than the copy, or faster
        lanes = Modelled((alpha, beta), update_s=u_each)
        u = n * u_each
        removes = [p.on_grad_ready(lambda p, lanes=lanes: lanes.compute(c, "backward"))
                   for p in model.parameters()]
        off = Offload(optim.AdamW(model.parameters()), lanes, bucket_bytes=1)
        x = minidl.tensor(np.ones((2, 16), "f2"))
        model(x).float().sum().backward()
        assert lanes.time() == pytest.approx(3 * c)
        off.step()
        # down: the first copy begins at c; then one after the other, c or d apart
        last_down = c + 2 * max(c, d) + d + alpha
        # host: the last update begins when its gradient is there and the others are done; those
        # cannot begin before backward is over
        first = max(3 * c, c + d + alpha)
        ends = [first + u]
        for i in (1, 2):
            ends.append(max(ends[-1], c + i * max(c, d) + d + alpha, 3 * c) + u)
        assert ends[-1] >= last_down
        # up: each copy after its update, and after the copy before
        wire = 0.0
        for end in ends:
            wire = max(wire, end) + d
        assert lanes.time() == pytest.approx(wire + alpha, rel=1e-12)
        assert lanes.overlap("device", "down") > 0, "gradients go down behind backward"
        assert lanes.overlap("host", "up") > 0, "weights come up behind the next update"
        assert lanes.overlap("device", "up") == 0, "no weight changes under backward"
        for remove in removes:
            remove()
        off.close()
    lanes.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == 3 + 3 + 3 + 3


def test_a_delayed_update_works_beside_the_next_backward():
    model = network(True)
    n = sum(p.numel() for p in model.parameters())
    shares = {}
    for delay_after in (None, 0):
        lanes = Modelled((1e-6, 1e-9), update_s=1e-7)
        off = Offload(optim.AdamW(model.parameters()), lanes, 100, delay_after)
        for step in range(4):
            lanes.compute(n * 1e-7, "forward and backward")
            backward(model, step)
            off.step(unscale=1 / 64)
        shares[delay_after] = lanes.overlap("device", "host") / lanes.busy("host")
        off.close()
    assert shares[None] == 0
    assert shares[0] > 0.7  # 3 of 4 updates: nothing follows the last one


def test_threads_overlap_in_real_time():
    # sleeps stand for backward, so that a busy machine makes nothing shorter: what is asserted is
    # only that copies and backward, and copies up and updates, lie beside each other somewhere
    model = network(True)
    lanes = Threads(link=(1e-3, 1e-6))
    for p in model.parameters():
        p.on_grad_ready(lambda p: lanes.compute(2e-3, "backward"))
    off = Offload(optim.AdamW(model.parameters()), lanes, bucket_bytes=1)
    start = time.perf_counter()
    for step in range(2):
        backward(model, step)
        off.step(unscale=1 / 64)
    took = time.perf_counter() - start
    assert lanes.overlap("device", "down") > 0
    n_bytes = 2 * sum(p.numel() for p in model.parameters())
    for lane in ("down", "up"):
        assert lanes.bytes[lane] == 2 * n_bytes
        # each copy takes its time, never less
        assert 2 * (n_bytes * 1e-6 + 6 * 1e-3) <= lanes.busy(lane) <= took
    off.close()


def test_an_error_in_a_lane_reaches_the_caller():
    model = network(False)
    off = Offload(optim.AdamW(model.parameters()), Threads())
    backward(model, 0)
    off.inner.param_groups[0]["betas"] = None
    with pytest.raises(TypeError):
        off.step()
    for remove in off.remove_hooks:
        remove()
    off.lanes.close()


def test_it_must_come_before_the_first_step_and_makes_the_masters_itself():
    model = network(True)
    with pytest.raises(ValueError, match="it makes them, on the host"):
        Offload(optim.use_master_weights(optim.AdamW(model.parameters())))


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("delay_after", [None, 1])
def test_a_snapshot_of_an_offloaded_run_goes_on_to_the_same_bits(half, delay_after, tmp_path):
    def make(seed):
        model = network(half)
        minidl.manual_seed(seed)
        for p in model.parameters():
            p.data[...] = minidl.randn(*p.shape).data
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
        model = nn.Linear(5, 3)
        model = stage(model.half() if half else model, t)
        optimizer = OPTIMIZERS["AdamW"](model.shards())
        return model, Offload(optimizer) if offload else optim.use_master_weights(optimizer)

    def write(t, offload):
        model, optimizer = run(t, offload, 1)
        for leaf in model.shards():
            leaf.grad = np.full(leaf.shape, 0.5, leaf.dtype)
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
        result = bits(model), [np.array(p.data) for p in optimizer.parameters()]
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


@pytest.mark.gpu
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("delay_after", [None, 1])
def test_a_gpu_and_the_hosts_memory(half, delay_after):
    # the same update on the host, of the same gradients: those of a GPU may round otherwise than
    # the CPU's, so they are given
    there, here = network(half).to("cuda"), network(half)
    off = Offload(OPTIMIZERS["AdamW"](there.parameters()), bucket_bytes=100,
                  delay_after=delay_after)
    on = Offload(OPTIMIZERS["AdamW"](here.parameters()), bucket_bytes=100, delay_after=delay_after)
    for step in range(4):
        rng = np.random.default_rng(step)
        for p, q in zip(there.parameters(), here.parameters(), strict=True):
            q.grad = rng.normal(size=q.shape).astype(q.dtype)
            p.grad = p._xp.asarray(q.grad)
        off.step()
        on.step()
        assert_same([p.data.get() for p in there.parameters()], bits(here))
    assert off.lanes.bytes == on.lanes.bytes
    off.close()
    on.close()

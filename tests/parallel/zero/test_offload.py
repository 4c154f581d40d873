"""An offloaded optimizer takes the steps of the one on the device; bytes and lanes are counted."""

import math
import time

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring, ring_blocks
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Offload, Zero1, Zero2, Zero3
from minidl.parallel.zero.lanes import Modelled, Threads
from minidl.precision.amp import GradScaler
from tests.conftest import ranks
from tests.devices import host, put
from tests.on_device import place, there

pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays

SIZES = [(9, 7), (7, 7), (7, 3)]


def network(half):
    minidl.manual_seed(0)
    model = nn.Sequential(*[m for a, b in SIZES for m in (nn.Linear(a, b), nn.Tanh())][:-1])
    return there(model.half() if half else model)


def backward(model, step, rank=0, scale=64.0):
    """A gradient that depends on the step and the rank; fp16 ones are kept from vanishing."""
    rng = np.random.default_rng([step, rank])
    dtype = next(iter(model.parameters())).dtype
    x, y = place(rng.normal(size=(4, 9)).astype(dtype)), place(rng.integers(0, 3, 4))
    (F.cross_entropy(model(x).float(), y) * scale).backward()


def bits(model):
    return [np.array(host(array)) for array in model.state_dict().values()]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def masters(optimizer):
    return [np.array(host(p)) for p in optimizer.parameters()]


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


def test_a_graph_from_before_a_step_is_refused_as_its_weights_have_changed():
    model = network(half=False)
    off = Offload(optim.SGD(model.parameters(), lr=1e-2))
    before = model(place(np.ones((4, 9), "f4"))).sum()
    backward(model, 0)
    off.step()
    with pytest.raises(RuntimeError, match="changed in place between forward and backward"):
        before.backward()
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


STAGES = {0: DataParallel, 1: Zero1, 2: Zero2, 3: Zero3}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("half", [True, False])
@ranks(1, 2, 3, 5)
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
            with pytest.raises(RuntimeError, match="Offload optimizer has moved the gradients"):
                model.clip_grad_norm_(1.0)
            optimizer.close()
        result = bits(model)
        model.close()
        return result

    assert_same(train(False), train(True))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@ranks(1, 2, 3)
def test_all_ranks_clip_by_the_norm_of_all_their_gradients(t, stage):
    """SGD with lr 1: the update is the clipped gradient, whose norm over all ranks is max_norm."""
    def train(offloaded):
        model = STAGES[stage](network(True), t)
        optimizer = optim.SGD(model.shards() if stage else model.parameters(), lr=1.0)
        optimizer = Offload(optimizer) if offloaded else optim.use_master_weights(optimizer)
        scaler = GradScaler(init_scale=64.0)
        before = masters(optimizer)
        backward(model, 0, t.rank)
        assert scaler.step(optimizer, max_norm=0.01)
        moved = sum(float(np.square(a - b, dtype=np.float64).sum())
                    for a, b in zip(masters(optimizer), before, strict=True))
        whole = ring.all_reduce(t, np.array([moved]))[0] if stage else moved
        # float32 weights of about 1 moved by 0.001: five digits are left
        assert math.sqrt(whole) == pytest.approx(0.01, rel=1e-3)
        if stage:
            model.gather()
        result = bits(model)
        model.close()
        return result

    for a, b in zip(train(False), train(True), strict=True):
        # the norm's squares add up in another order: a last place of float16, at most
        np.testing.assert_allclose(a, b, rtol=2**-10)


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
                p.array[...] = put(array, p.device)  # what backward of the next step will use
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
        scaler = GradScaler(init_scale=2.0**6)
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


def test_it_must_come_before_the_first_step_and_makes_the_masters_itself():
    model = network(True)
    with pytest.raises(ValueError, match="makes its own master weights on the host"):
        Offload(optim.use_master_weights(optim.AdamW(model.parameters())))


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
            gradient = rng.normal(size=q.shape).astype(q.dtype)
            q.grad, p.grad = put(gradient, q.device), put(gradient, p.device)
        off.step()
        on.step()
        assert_same([p.array.get() for p in there.parameters()], bits(here))
    assert off.lanes.bytes == on.lanes.bytes
    off.close()
    on.close()


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("delay_after", [None, 0])
def test_weights_loaded_into_the_model_are_not_reverted_by_the_next_step(half, delay_after):
    model, there = network(half), network(half)
    plain = optim.use_master_weights(optim.SGD(model.parameters(), lr=0.1))
    off = Offload(optim.SGD(there.parameters(), lr=0.1), bucket_bytes=100, delay_after=delay_after)
    backward(there, 0)
    off.step(unscale=1 / 64)
    new = {name: array * 2 + 1 for name, array in model.state_dict().items()}
    for m, o in ((model, plain), (there, off)):
        m.load_state_dict(new)
        o.zero_grad()
        backward(m, 1)
        o.step(unscale=1 / 64)
    off.finish()
    assert_same(bits(model), bits(there))
    off.close()


def test_parameters_wait_for_the_gradients_that_are_still_on_their_way():
    """A link of 50 ms: clipping comes long before the gradients are down."""
    model, there = network(False), network(False)
    plain = OPTIMIZERS["AdamW"](model.parameters())
    off = Offload(OPTIMIZERS["AdamW"](there.parameters()), Threads((0.05, 0.0)), bucket_bytes=100)
    for m, o in ((model, plain), (there, off)):
        backward(m, 0)
        norm = optim.clip_grad_norm_(o.parameters(), 0.1)
        assert norm > 0.1
        o.step()
    off.finish()
    for a, b in zip(bits(there), bits(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    off.close()


def test_threads_compute_takes_its_seconds():
    lanes = Threads()
    start = time.perf_counter()
    lanes.compute(0.05, "model")
    assert time.perf_counter() - start >= 0.05
    lanes.close()

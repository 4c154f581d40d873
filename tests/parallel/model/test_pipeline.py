"""A pipeline computes what one rank does, and holds, sends and takes what the formulas say."""

import functools
import weakref

import numpy as np
import pytest

import minidl
from minidl import backend, nn, optim
from minidl.comm import simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.function import Function
from minidl.nn import functional as F
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import HEADER_BYTES, Pipeline
from minidl.parallel.model.schedule import (
    Do, gpipe, interleaved, live, makespan, one_f_one_b, timeline, zb_h1,
)
from minidl.precision import amp
from tests.conftest import EVERY, STEPS, ranks, some
from tests.parallel.model.pipeline_net import (
    SIZES, WIDTH, assert_gradients, chain, data, mse, one_rank, pipeline, reference, schedules,
)


@pytest.mark.parametrize("dtype", some(["float32", "float64"]))
@ranks(*SIZES)
def test_loss_and_gradients_have_the_bits_of_one_rank(t, dtype):
    """Every schedule; fewer micro-batches than ranks, as many, more, and no multiple."""
    n = 8 if t.size <= 4 else 16
    for m in {5: (3, 5, 6), 8: (3, 8)}.get(t.size, sorted({1, 3, t.size, t.size + 1})):
        want, total = reference(n, dtype, m)
        for schedule in schedules(t.size, m, n):
            pipe = pipeline(t, chain(n, dtype), schedule)
            loss = pipe.step(*data(2 * m, dtype))
            assert (loss is None) == (t.rank < t.size - 1)
            assert loss is None or loss.dtype == dtype and loss.array == total.array
            assert pipe.everywhere(loss) == total.item()
            assert_gradients(pipe, want)


@ranks(2, 3)
def test_a_second_step_adds_to_the_gradients_and_may_have_another_size(t):
    want, pipe = chain(), pipeline(t, chain(), zb_h1(t.size, 2))
    for n in (6, 4):  # a smaller last batch
        x, y = data(n)
        one_rank([want], mse, x, y, 2)
        pipe.step(x, y)
    assert_gradients(pipe, want)


@ranks(2, 3)
def test_without_gradients_a_step_is_the_forward_alone(t):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
                            for _ in range(4)]).double()
    pipe = pipeline(t, model, zb_h1(t.size, 4)).eval()
    minidl.manual_seed(1)
    other = nn.Linear(WIDTH, WIDTH).double()
    pipe.load_state_dict({f"{i}.0.{name}": x for i in range(4)
                          for name, x in other.state_dict().items()})
    x, y = data(8)
    with minidl.no_grad():
        loss = pipe.step(x, y)
        want = one_rank([other] * 4, mse, x, y, 4, backward=False)
    assert loss is None or loss.array == want.array
    assert {at.do.kind for at in pipe.lanes} == {"F"}
    assert all(p.grad is None for p in pipe.parameters())


GPT = dict(vocab_size=11, context=6, n_layers=3, n_heads=2, width=8, bias=False)


def tiny_gpt(tied=True):
    minidl.manual_seed(0)
    model = nn.GPT(**GPT, tied=tied).double()
    if not tied:  # the tied one's values
        model.head.weight.data = model.token.weight.array.copy()
    return model


def text(step, m):
    ids = np.random.default_rng(step).integers(0, 11, (2 * m, 7))
    return ids[:, :-1], ids[:, 1:]


def entropy(logits, y):
    return F.cross_entropy(logits.reshape(-1, 11), minidl.tensor(y.reshape(-1)))


@ranks(2, 3)
def test_a_weight_of_two_ranks_is_summed_over_both(t):
    """On one rank, untied, the output layer's gradients and the embedding's are summed apart: so
    they are here, and then to each other. Both ranks have these bits."""
    want, (x, y) = tiny_gpt(tied=False), text(0, 4)
    one_rank([want], entropy, x, y, 4)
    total = want.token.weight.grad + want.head.weight.grad
    want.token.weight.grad = want.head.weight.grad = total
    for schedule in (one_f_one_b(t.size, 4), zb_h1(t.size, 4)):
        pipe = pipeline(t, tiny_gpt(), schedule, entropy)
        pipe.step(x, y)
        assert_gradients(pipe, want)
        assert len(pipe.tied) == (t.rank in (0, t.size - 1))


@functools.cache
def trained_alone(n_steps, m):
    """Losses, norms and weights of so many steps on one rank."""
    model = tiny_gpt()
    optimizer, figures = optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(n_steps):
        optimizer.zero_grad()
        loss = one_rank([model], entropy, *text(step % 5, m), m)
        figures.append((loss.item(), optim.clip_grad_norm_(model.parameters(), 0.5).item()))
        optimizer.step()
    return figures, model.state_dict()


@ranks(3)
def test_the_steps_of_a_tiny_gpt_are_one_ranks(t):
    """AdamW, clipped by the norm over all stages. 1e-12: the tied weight's sum rounds otherwise."""
    m = 3
    figures, weights = trained_alone(STEPS, m)
    pipe = pipeline(t, tiny_gpt(), one_f_one_b(t.size, m), entropy)
    optimizer = optim.AdamW(pipe.parameters(), lr=1e-2)
    for step, want in enumerate(figures):
        optimizer.zero_grad()
        loss = pipe.everywhere(pipe.step(*text(step % 5, m)))
        norm = optim.clip_grad_norm_(pipe.parameters(), 0.5).item()
        assert (loss, norm) == pytest.approx(want, rel=1e-12)
        optimizer.step()
    for name, x in pipe.state_dict().items():
        np.testing.assert_allclose(x, weights[name], rtol=1e-9, atol=1e-12, err_msg=name)
    assert loss < 2.2 or not EVERY  # from log(11) = 2.398


# -- what is held, sent, and how long it takes


class Keep(Function):
    """x + 1, which keeps an array of its own for backward."""

    def forward(self, x):
        self.save(mark := x + 2)
        COUNTS[-1].add(mark)
        return x + 1

    def backward(self, gy):
        return gy


class Counted:
    """How many of the arrays that were added are still there, and the most that there were."""

    def __init__(self):
        self.alive, self.most = 0, 0

    def add(self, array):
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(array, self.gone)

    def gone(self):
        self.alive -= 1


COUNTS = []


class Keeping(nn.Module):
    """Keeps one array from F to B, and a Linear's input, its own result, from F to W."""

    def __init__(self, counts):
        super().__init__()
        self.linear, self.counts = nn.Linear(WIDTH, WIDTH), counts
        self.one = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x):
        kept, inputs, outputs = self.counts
        COUNTS.append(kept)
        x = Keep.apply(x * self.one)  # wants a gradient in the first stage, too
        COUNTS.pop()
        inputs.add(x.array)
        y = self.linear(x)
        outputs.add(y.array)
        return y


def held(t, schedule, recompute=False, inputs_first=False):
    counts = Counted(), Counted(), Counted()
    stages = [Keeping(counts) for _ in range(max(do.stage for dos in schedule for do in dos) + 1)]
    pipe = Pipeline(t, stages, mse, schedule, recompute=recompute,
                    inputs_first=inputs_first)
    pipe.step(*data(2 * 8, np.float32))
    assert not any(count.alive for count in counts)
    assert counts[2].most == 1 or t.rank == t.size - 1  # on its way to the next stage, no longer
    return [count.most for count in counts[:2]]


@pytest.mark.parametrize("schedule", [gpipe(4, 8), one_f_one_b(4, 8), interleaved(4, 8, 2)])
def test_live_activations_are_the_formula(schedule):
    """GPipe m, 1F1B p - s, by the arrays that exist; interleaved 11, 9, 7, 5 of half the size."""
    for inputs_first in (False, True):
        assert simulate(4, held, schedule, False, inputs_first) == [
            [n, n] for n in live(schedule)]


def test_zb_h1_holds_products_inputs_until_w_and_the_rest_until_b():
    assert simulate(4, held, zb_h1(4, 8)) == [[4, 4], [3, 4], [2, 4], [1, 4]]


def test_with_recompute_nothing_is_held_but_inputs():
    assert simulate(4, held, one_f_one_b(4, 8), True) == [[1, 1]] * 4
    # ZB-H1: of the products, what the W that are s behind their B will need
    assert simulate(4, held, zb_h1(4, 8), True) == [[1, s + 1] for s in range(4)]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zb_h1])
@ranks(2, 3, 4)
def test_bytes_and_messages_are_the_formula(t, make):
    """Per boundary m activations and one header forward, m gradients back."""
    m, act = 5, 2 * WIDTH * 8
    ledger = Ledger(t)
    pipe = pipeline(ledger, chain(), make(t.size, m))
    ledger.reset()
    pipe.step(*data(2 * m))
    up, down = t.rank < t.size - 1, t.rank > 0
    assert ledger.bytes_sent == up * (m * act + HEADER_BYTES) + down * m * act
    assert ledger.messages_sent == up * (m + 1) + down * m


@pytest.mark.parametrize("schedule", [
    gpipe(4, 8), one_f_one_b(4, 8), zb_h1(4, 8), interleaved(4, 8, 2), one_f_one_b(8, 5),
    gpipe(8, 3), zb_h1(8, 3), one_f_one_b(1, 3), interleaved(2, 6, 4)])
@pytest.mark.parametrize("hop", [0.0, 0.125])
def test_the_modelled_clock_is_the_timeline(schedule, hop):
    """A step in the simulator, with computation of so many seconds and messages of so many, takes
    what `timeline` says; and each part runs then. 1e-9: sums of times."""
    p, seconds = len(schedule), (1.0, 1.5, 0.75)

    def step(t):
        pipe = pipeline(t, chain(16), schedule, seconds=seconds)
        pipe.step(*data(2 * (1 + max(do.micro for do in schedule[0]))))
        return pipe.lanes

    lanes = simulate(p, step, alpha=hop, beta=0.0)
    want = timeline(schedule, *seconds, hop=hop)
    assert makespan(lanes) == pytest.approx(makespan(want), rel=1e-9)
    for got, formula in zip(lanes, want, strict=True):
        assert [at.do for at in got] == [at.do for at in formula]
        np.testing.assert_allclose([at[1:] for at in got], [at[1:] for at in formula], rtol=1e-9)


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize("p, m", [(1, 3), (2, 4), (4, 8), (4, 2)])
def test_inputs_first_idles_a_w_less_at_each_boundary(make, p, m):
    """m (F + B + W) + (p-1)(F + B), where a B that sends at its end leaves (p-1)(F + B + W)."""
    def step(t, inputs_first):
        pipe = pipeline(t, chain(16), make(p, m), seconds=(1.0, 1.5, 0.75),
                        inputs_first=inputs_first)
        pipe.step(*data(2 * m))
        return pipe.lanes

    assert [makespan(simulate(p, step, first, alpha=0.0, beta=0.0)) for first in (True, False)] == [
        m * 3.25 + (p - 1) * 2.5, (m + p - 1) * 3.25]


@ranks(2, 3)
def test_inputs_first_has_the_same_bits(t):
    for make, recompute in ((gpipe, False), (one_f_one_b, True)):
        want, pipe = chain(8), pipeline(t, chain(8), make(t.size, 3), inputs_first=True,
                                        recompute=recompute)
        one_rank([want], mse, *data(6), 3)
        pipe.step(*data(6))
        assert_gradients(pipe, want)


@pytest.mark.parametrize("p, m", [(1, 2), (2, 1), (2, 4), (3, 2), (4, 4), (8, 3)])
def test_no_rank_stands_in_a_send(p, m):
    """Where a send is over only once its receive is posted, as MPI's large ones."""
    def step(t, schedule):
        pipeline(t, chain(16), schedule).step(*data(2 * m))

    for schedule in schedules(p, m):
        simulate(p, step, schedule, rendezvous_bytes=0)


# -- precision, recompute, data parallelism


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@ranks(2, 4)
def test_mixed_precision_sends_halves_and_has_the_bits_of_one_rank(t, dtype):
    m, (x, y) = 4, data(8, np.float32)
    options = {"dtype": minidl.bfloat16} if dtype == "bfloat16" else {}
    scaler = amp.GradScaler(enabled=dtype == "float16", init_scale=256.0)

    def model():
        minidl.manual_seed(0)
        return nn.Sequential(*[nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
                               for _ in range(4)])

    want = model()
    ledger = Ledger(t)
    pipe = pipeline(ledger, model(), one_f_one_b(t.size, m))
    with amp.autocast(**options):
        one_rank([want], mse, x, y, m, scaler)
        ledger.reset()
        pipe.step(x, y, scaler)
    assert_gradients(pipe, want)
    if t.rank == 0:
        assert ledger.bytes_sent == m * 2 * WIDTH * 2 + HEADER_BYTES


@ranks(2, 3)
def test_an_overflow_in_one_stage_skips_the_step_on_all_ranks(t):
    pipe = pipeline(t, chain(dtype=np.float32), one_f_one_b(t.size, 2))
    optimizer, scaler = optim.SGD(pipe.parameters(), lr=1.0), amp.GradScaler(init_scale=4.0)
    before = {name: x.array.copy() for name, x in pipe.state_dict().items()}
    pipe.step(*data(4, np.float32), scaler)
    if t.rank == 0:
        pipe.parameters()[0].grad[0] = np.inf
    assert not scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    for name, x in pipe.state_dict().items():
        np.testing.assert_array_equal(x, before[name])


@ranks(2, 3)
def test_the_norm_is_over_all_stages_and_counts_a_shared_weight_once(t):
    """clip_grad_norm_ and GradScaler.step(max_norm=) are told by the parameters."""
    want, (x, y) = tiny_gpt(), text(0, 2)
    one_rank([want], entropy, x, y, 2)
    norm = optim.clip_grad_norm_(want.parameters(), 0.1).item()
    pipe = pipeline(t, tiny_gpt(), gpipe(t.size, 2), entropy)
    pipe.step(x, y)
    assert optim.clip_grad_norm_(pipe.parameters(), 0.1).item() == pytest.approx(norm, rel=1e-12)
    assert_gradients(pipe, want, lambda got, g, err_msg: np.testing.assert_allclose(
        got, g, rtol=1e-9, atol=1e-15, err_msg=err_msg))
    pipe = pipeline(t, tiny_gpt(), gpipe(t.size, 2), entropy)
    before = {name: value.array.copy() for name, value in pipe.state_dict().items()}
    scaler = amp.GradScaler(init_scale=8.0)
    pipe.step(x, y, scaler)
    scaler.step(optim.SGD(pipe.parameters(), lr=1.0), max_norm=0.1)
    for stage in pipe.stages.values():
        for name, p in stage.named_parameters():
            grad = want.get_parameter(name).grad
            np.testing.assert_allclose(before[name] - p.array, grad, rtol=1e-6, atol=1e-12)


@ranks(2, 3)
def test_recompute_inside_the_stages_has_the_same_bits(t):
    x, y = data(4)
    for schedule in schedules(t.size, 2):
        want, pipe = chain(), pipeline(t, chain(), schedule, recompute=True)
        one_rank([want], mse, x, y, 2)
        pipe.step(x, y)
        assert_gradients(pipe, want)


@pytest.mark.parametrize("make, recompute", some([
    pytest.param(zb_h1, True, id="zb-h1 again"), pytest.param(zb_h1, False, id="zb-h1"),
    pytest.param(functools.partial(interleaved, v=2), False, id="interleaved"),
    pytest.param(one_f_one_b, False, id="1f1b"), pytest.param(gpipe, None, id="inputs first")]))
@ranks(2, 4)
def test_data_parallelism_averages_once_a_step(t, make, recompute):
    """Two pipelines: half of the gradients' sum, to the bit; sent during the last backward only."""
    p, m = t.size // 2, 4
    mine = t.subgroup(range(t.rank // p * p, t.rank // p * p + p))
    beside = [None] * p
    for s in range(p):
        beside[s] = t.subgroup([s, p + s])
    ledger = Ledger(beside[mine.rank])
    pipe = pipeline(mine, chain(), make(p, m), dp=ledger, recompute=bool(recompute),
                    inputs_first=recompute is None)
    grads = []
    for replica in range(2):
        want = chain()
        one_rank([want], mse, *data(8, seed=replica), m)
        grads.append(want)
    for a, b in zip(*(g.parameters() for g in grads), strict=True):
        if a.grad is not None:
            a.grad = (a.grad + b.grad) / 2
    for _ in range(2):  # after the first one the buckets' order is sent, once
        ledger.reset()
        for p in pipe.parameters():
            p.grad = None
        pipe.step(*data(8, seed=t.rank // mine.size))
        assert_gradients(pipe, grads[0])
    assert ledger.bytes_sent == sum(r.bytes_sent() for r in pipe.replicas.values())
    pipe.close()


# -- models of other kinds


class Two(nn.Module):
    """Takes and passes on a tuple: the input, which nobody changes, and what is made of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, h=None):
        x = minidl.tensor(x) if isinstance(x, np.ndarray) else x
        return x, F.tanh(self.linear(x if h is None else x + h))


@ranks(3)
def test_a_stage_may_pass_on_several_tensors_and_some_without_gradient(t):
    """The first one needs none: it is the input itself."""
    def stages():
        minidl.manual_seed(1)
        return [Two().double() for _ in range(3)]

    def loss(outputs, target):
        return mse(outputs[0] + outputs[1], target)

    (x, y), want = data(4), stages()
    for i in range(2):
        out = (x[2 * i:2 * i + 2],)
        for stage in want:
            out = stage(*out)
        (loss(out, y[2 * i:2 * i + 2]) / 2).backward()
    pipe = Pipeline(t, stages(), loss, zb_h1(3, 2))
    pipe.step(x, y)
    for stage, mine in pipe.stages.items():
        for p, q in zip(mine.parameters(), want[stage].parameters(), strict=True):
            np.testing.assert_array_equal(p.grad, q.grad)


@ranks(2, 3)
def test_frozen_first_stages_get_no_gradients_and_send_none(t):
    want, model = chain(6), chain(6)
    for net in (want, model):
        for block in list(net)[:2]:
            block.requires_grad_(False)
    x, y = data(4)
    one_rank([want], mse, x, y, 2)
    ledger = Ledger(t)
    pipe = Pipeline(ledger, cut(model, [2, 4] if t.size == 2 else [2, 2, 2]), mse,
                    one_f_one_b(t.size, 2))
    ledger.reset()
    pipe.step(x, y)
    if t.rank:
        assert_gradients(pipe, want)
    assert ledger.messages_sent == {0: 3, t.size - 1: 2 if t.size == 3 else 0}.get(t.rank, 3)


# -- what is refused


@pytest.mark.parametrize("n, said", [
    (7, "rank 0: wanted inputs .* divisible by 4, .* got 7 samples. Use 4 samples"),
    (3, "got 3 samples. Use 4"), (0, "got 0 samples. Use 4")])
def test_a_batch_that_micro_batches_do_not_divide_is_refused(n, said):
    with pytest.raises(RankFailed, match=said):
        simulate(2, lambda t: pipeline(t, chain(), gpipe(2, 4)).step(*data(n)))


def test_another_number_of_micro_batches_is_refused():
    x, y = data(8)
    with pytest.raises(RankFailed, match="rank 0: the schedule wants a list of 4 .* a list of 3"):
        simulate(2, lambda t: pipeline(t, chain(), gpipe(2, 4)).step([x[:2]] * 3, [y[:2]] * 3))


def test_ranks_with_unequal_numbers_of_micro_batches_are_refused():
    with pytest.raises(RankFailed, match="for 3 micro-batches on this rank, and for 2 on rank 0"):
        simulate(2, lambda t: pipeline(t, chain(), gpipe(2, 2 + t.rank)).step(*data(6)))


def test_micro_batches_that_differ_are_refused_where_they_do():
    x, y = data(8)
    parts = [x[:2], x[2:3]], [y[:2], y[2:3]]
    with pytest.raises(RankFailed, match=r"rank 0: stage 0 .* got float64 \(2, 6\) for the "
                                         r"first micro-batch, and float64 \(1, 6\) for micro-"):
        simulate(2, lambda t: pipeline(t, chain(), gpipe(2, 2)).step(*parts))


def test_a_missing_batch_is_refused():
    with pytest.raises(RankFailed, match="rank 1: this rank's stage needs the targets of the step"):
        simulate(2, lambda t: pipeline(t, chain(), gpipe(2, 2)).step(data(2)[0]))


@pytest.mark.parametrize("schedule, n_stages, said", [
    (gpipe(3, 2), 3, "a schedule for 2 ranks, .* got a schedule for 3"),
    (gpipe(2, 2), 3, "has 2 stages, but the model is cut into 3"),
    ([gpipe(2, 1)[0], gpipe(2, 1)[1][::-1]], 2, "stage 1 must run part F .* before part B"),
])
def test_a_schedule_for_another_pipeline_is_refused(schedule, n_stages, said):
    with pytest.raises(RankFailed, match=said):
        simulate(2, lambda t: Pipeline(t, cut(chain(), n_stages), mse, schedule))


def test_what_no_header_describes_is_refused():
    class AsItIs(nn.Module):
        def forward(self, x):
            return x  # an array

    with pytest.raises(RankFailed, match="stage 0 of a pipeline must return a Tensor"):
        simulate(2, lambda t: Pipeline(t, [AsItIs()] * 2, mse, gpipe(2, 1)).step(*data(1)))

    class Odd(nn.Module):
        def forward(self, x):
            return minidl.tensor(x.astype(np.int16))

    with pytest.raises(RankFailed, match="stage 0 of a pipeline must .* got int16"):
        simulate(2, lambda t: Pipeline(t, [Odd(), Odd()], mse, gpipe(2, 1)).step(*data(1)))
    with pytest.raises(RankFailed, match="stage 0 returns 9 tensors. .* has room for 32"):
        class Many(nn.Module):
            def forward(self, x):
                return (minidl.tensor(x),) * 9

        simulate(2, lambda t: Pipeline(t, [Many(), Many()], mse, gpipe(2, 1)).step(*data(1)))


def test_a_stage_that_raises_is_named():
    class Sick(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 2:
                raise ArithmeticError("planted")
            return x * 2

    sick = Sick()
    stages = [chain(1), sick]
    with pytest.raises(RankFailed, match="rank 1: ArithmeticError: planted") as failed:
        simulate(2, lambda t: Pipeline(t, stages, mse, one_f_one_b(2, 2)).step(*data(4)))
    assert failed.value.__cause__.__notes__ == ["rank 1, in F1.1: stage 1, micro-batch 1"]

def test_a_part_is_printed_as_the_schedules_words():
    assert str(Do("F", 2, 0)) == "F2.0"


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1])
def test_on_a_gpu_arrays_stay_there(strict_cupy, make):
    """The stand-in refuses to mix its arrays with NumPy's; its sums round otherwise."""
    want, _ = reference(16, "float64", 3)

    def step(t):
        pipe = pipeline(t, chain(16).to("cuda"), make(2, 3),
                        lambda y, target: F.mse_loss(y, minidl.Tensor(target)))
        pipe.step(*(backend.to_device(x, "cuda") for x in data(6)))
        assert all(p.grad is None or isinstance(p.grad.array, strict_cupy.ndarray)
                   for p in pipe.parameters())
        assert_gradients(pipe, want, lambda g, w, err_msg: np.testing.assert_allclose(
            backend.to_device(g, "cpu"), w, rtol=1e-10, err_msg=err_msg))

    simulate(2, step)

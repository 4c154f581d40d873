"""Compressed all-reduce: the same bits everywhere, errors within the bound, bytes by formula."""

import numpy as np
import pytest

from minidl.comm import average, chunks, codec, compressed, ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.comm.cases import bits_agree, data, length_of
from tests.conftest import ranks

CODECS = ["FP16", "INT8"]
WITH_FEEDBACK = [*CODECS, "ONE_BIT", "ONE_BIT_MEAN"]
LENGTHS = [0, 1, "n-1", "n", "n+1", 5003]  # the last is a prime, of several int8 blocks


def code_error(c, x):
    """What encoding x may change in each element: the bounds of codec.py."""
    x = np.abs(x.astype("f8"))
    if c is codec.FP16:
        return x / 2048 + 2.0**-25
    starts = range(0, len(x), codec.BLOCK)
    parts = [x[i : i + codec.BLOCK] for i in starts]
    return np.concatenate([np.full(len(p), p.max() / 254) for p in parts] or [x])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CODECS)
@ranks(1, 2, 3, 4, 5, 8)
def test_the_error_is_within_the_bound_and_all_ranks_agree(t, name, length, dtype):
    c = getattr(codec, name)
    n, length = t.size, length_of(length, t.size)
    inputs = [data(rank, length, dtype) for rank in range(n)]
    x = inputs[t.rank].copy()
    result = compressed.all_reduce(t, x, c)
    assert result.dtype == dtype and (result == x).all()  # in place
    assert bits_agree(t, result)
    exact = np.sum([i.astype("f8") for i in inputs], axis=0)
    for j, part in enumerate(chunks.split(result, n)):
        blocks = [chunks.split(i, n)[j] for i in inputs]
        # every rank's block but the owner's is coded once, then the sum, off by these errors
        error = sum((code_error(c, b) for k, b in enumerate(blocks) if k != j), np.zeros(len(part)))
        total = chunks.split(exact, n)[j]
        error = error + code_error(c, np.abs(total) + error) * (n > 1)
        # float32 additions; x's own dtype at the end; int8's own float32 arithmetic (test_codec)
        size = sum(np.abs(b.astype("f8")) for b in blocks)
        error = error * (1 + 2.0**-12) + size * (n * 2.0**-24 + (dtype == "f2") * 2.0**-10)
        assert (np.abs(part - total) <= error).all()


@pytest.mark.parametrize("name", CODECS)
@ranks(2, 3, 4, 8)
def test_rounding_does_not_pile_up_from_hop_to_hop(t, name):
    # The root of the mean square error, against a ring that codes at every hop.
    c = getattr(codec, name)
    length = 1024 * t.size
    inputs = [data(rank, length) for rank in range(t.size)]
    exact = np.sum([i.astype("f8") for i in inputs], axis=0)
    ours = np.sqrt(np.mean((compressed.all_reduce(t, inputs[t.rank].copy(), c) - exact) ** 2))
    hops = np.zeros(length)
    for j, part in enumerate(chunks.split(hops, t.size)):
        total = chunks.split(inputs[j], t.size)[j]
        for k in range(1, t.size):
            total = c.decode(c.encode(total), 1024) + chunks.split(inputs[j - k], t.size)[j]
        part[:] = c.decode(c.encode(total), 1024)
    naive_error = np.sqrt(np.mean((hops - exact) ** 2))
    assert ours <= naive_error * 1.05  # equal at 2 ranks but for which share is rounded
    assert t.size < 8 or ours < 0.8 * naive_error


@pytest.mark.parametrize("name", CODECS)
@ranks(1, 2, 3, 4, 8)
def test_numbers_that_the_code_holds_exactly_are_summed_exactly(t, name):
    # int8: blocks whose largest value is 127 have scale 1, and all sums too.
    c = getattr(codec, name)
    x = np.where(np.arange(50) % 5 == 0, 127, np.arange(50)) * (t.rank == np.arange(50) % t.size)
    expected = naive.all_reduce(t, x.copy())
    result = compressed.all_reduce(t, x.astype("f4"), c)
    blocks = chunks.split(expected, t.size)
    if c is codec.FP16 or all(b.max() == 127 for b in blocks):
        assert (result == expected).all()


@ranks(2, 3, 4, 8)
def test_the_mean_divides_before_it_encodes(t):
    x = np.full(10, 60000 - 32 * t.rank, np.float32)
    expected = np.float16(60000 - 16 * (t.size - 1))  # the sum passes float16's 65504
    assert (compressed.mean(t, x.copy(), codec.FP16) == expected).all()
    half = compressed.mean(t, x.astype(np.float16), codec.FP16)
    assert half.dtype == np.float16 and (half == expected).all()  # added up in float32
    with np.errstate(over="ignore"):
        assert np.isinf(compressed.all_reduce(t, x.copy(), codec.FP16)).all()
    # the general mean works too, where the sum fits
    got = average.mean(t, np.full(10, t.rank, np.float32), compressed.all_reduce)
    np.testing.assert_allclose(got, (t.size - 1) / 2, rtol=1e-6)  # a block of one value is exact


@pytest.mark.parametrize("name", CODECS)
@ranks(1, 2, 3, 4)
def test_any_shape_and_strides(t, name):
    c = getattr(codec, name)
    grid = data(t.rank, 60).reshape(4, 15)
    kept = grid.copy()
    expected = naive.all_reduce(t, grid.copy())
    result = compressed.all_reduce(t, grid[:, ::2], c)
    assert (grid == kept).all() or t.size == 1  # a strided argument is left alone
    np.testing.assert_allclose(result, expected[:, ::2], atol=0.5)  # int8: about 2n * 9 / 254
    assert compressed.all_reduce(t, grid, c) is not None and grid.shape == (4, 15)
    np.testing.assert_allclose(grid, expected, atol=0.5)


@ranks(1)
def test_one_rank_rounds_nothing(t):
    x = data(0, 100)
    assert (compressed.all_reduce(t, x.copy()) == x).all()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CODECS)
@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_and_messages_equal_the_formula(t, name, length):
    c = getattr(codec, name)
    n, r, length = t.size, t.rank, length_of(length, t.size)
    sizes = [c.n_bytes(chunks.size(length, n, i)) for i in range(n)]
    ledger = Ledger(t)
    compressed.all_reduce(ledger, np.ones(length, "f4"), c)
    expected = 2 * sum(sizes) - sizes[r] - sizes[(r + 1) % n] if n > 1 else 0
    assert expected == compressed.bytes_sent(length, c, n, r)
    assert (ledger.bytes_sent, ledger.messages_sent) == (expected, 2 * (n - 1))
    assert ledger.count(label="compressed.all_reduce") == ledger.count()


@pytest.mark.parametrize("fn", ["all_reduce", "mean"])
@ranks(1, 2, 3, 4, 5, 8)
def test_what_rounding_takes_comes_back(t, fn):
    for name in WITH_FEEDBACK:
        for length in LENGTHS:
            conserves(t, name, length, getattr(compressed, fn))


def conserves(t, name, length, fn):
    # In float64 of small integers: every sum below is of few bits and exact but for the division of
    # int8's and one bit's scales, which are float32.
    c, n, length = getattr(codec, name), t.size, length_of(length, t.size)
    residual, delivered, wanted = np.zeros(length), np.zeros(length), np.zeros(length)
    for step in range(4):
        xs = [np.random.default_rng([rank, step]).integers(-999, 999, length) for rank in range(n)]
        x = xs[t.rank].astype("f8")
        result = fn(t, x, c, residual=residual)
        assert result is not None and (result == x).all() and bits_agree(t, x)
        delivered += x * (n if fn is compressed.mean else 1)
        wanted += sum(xs)
    lost = naive.all_reduce(t, residual.copy())
    # fp16 rounds to multiples of powers of two; the others' 4 n values are sums of numbers below
    # 2^14 n, of which each rounding in float64 takes at most 2^-53
    tolerance = 0 if name == "FP16" and fn is compressed.all_reduce else 64 * n * n * 2.0**-36
    np.testing.assert_allclose(delivered + lost, wanted, rtol=0, atol=tolerance)
    assert n == 1 or length < 5000 or name == "FP16" or np.abs(lost).max() > 0


@ranks(2, 4, mpi=False)
def test_with_feedback_the_mean_of_many_rounds_is_exact_and_without_it_is_not(t):
    # The same gradient 300 times: one bit and a scale, in the end as good as 32 bits.
    x = data(t.rank, 40)
    exact = naive.all_reduce(t, x.astype("f8"))
    residual, delivered, plain = np.zeros(40, "f4"), np.zeros(40), np.zeros(40)
    for _ in range(300):
        delivered += compressed.all_reduce(t, x.copy(), codec.ONE_BIT_MEAN, residual=residual)
        plain += compressed.all_reduce(t, x.copy(), codec.ONE_BIT_MEAN)
    assert np.abs(delivered / 300 - exact).max() < 0.05 * np.abs(exact).max()
    assert np.abs(plain / 300 - exact).max() > 0.3 * np.abs(exact).max()


@pytest.mark.parametrize("name", WITH_FEEDBACK)
@ranks(1, 2, 3, mpi=False)
def test_feedback_sends_no_byte_more(t, name):
    ledger, c = Ledger(t), getattr(codec, name)
    compressed.all_reduce(ledger, np.ones(3001, "f4"), c, residual=np.zeros(3001, "f4"))
    assert ledger.bytes_sent == compressed.bytes_sent(3001, c, t.size, t.rank)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e6])
def test_what_is_not_a_number_is_refused_before_it_stays_for_ever(value):
    def body(t):
        compressed.all_reduce(t, np.full(4, value), codec.FP16, residual=np.zeros(4))

    with pytest.raises(RankFailed, match="wanted finite numbers in the range"):
        simulate(2, body)


@pytest.mark.parametrize("x, residual", [
    (np.ones(4, "f2"), np.zeros(4, "f2")), (np.ones(4), np.zeros(3)),
    (np.ones(4), np.zeros(4, "f4"))])
def test_a_residual_that_is_not_like_x_is_refused(x, residual):
    with pytest.raises(RankFailed, match="rank 0: wanted x in float32 or float64"):
        simulate(2, lambda t: compressed.all_reduce(t, x.copy(), codec.FP16, residual=residual))


@ranks(4, 8)
def test_golden_bytes(t):
    # 512 KiB of float32: the ring sends 2 (n-1)/n of it, fp16 half of that, int8 a quarter + 0.4 %.
    length, n = 1 << 17, t.size
    sent = {}
    for name, fn in [
        ("ring", ring.all_reduce),
        ("fp16", lambda t, x: compressed.all_reduce(t, x, codec.FP16)),
        ("int8", lambda t, x: compressed.all_reduce(t, x, codec.INT8)),
    ]:
        ledger = Ledger(t)
        fn(ledger, np.ones(length, "f4"))
        sent[name] = ledger.bytes_sent
    assert sent["ring"] == 2 * (n - 1) * length * 4 // n
    assert sent["fp16"] * 2 == sent["ring"]
    assert sent["int8"] * 1024 == sent["ring"] * (256 + 1)


@ranks(1, 2, 3, 4, 5, 8)
def test_sparse_adds_every_pair_also_where_indices_meet(t):
    n, length = t.size, 11
    # Rank r has r+1 pairs (rank 1 none), an index of its own, one for all, one twice.
    index = {r: [] if r == 1 else [r, 10, 10, *range(r)][: r + 3] for r in range(n)}
    value = {r: 2.0 ** -np.arange(len(index[r])) * (r + 1) for r in range(n)}
    result = compressed.sparse_all_reduce(
        t, np.array(index[t.rank], int), value[t.rank], length
    )
    expected = np.zeros(length)
    for r in range(n):
        for i, v in zip(index[r], value[r], strict=True):
            expected[i] += v
    assert result.dtype == np.float32 and (result == expected).all()  # sums of few bits: exact
    assert bits_agree(t, result)


@ranks(2, 3, 4, 8)
def test_sparse_is_the_same_bits_on_all_ranks(t):
    rng = np.random.default_rng(t.rank)
    indices = rng.permutation(50)[:30]
    values = rng.normal(size=30) * 10.0 ** rng.integers(-6, 6, 30)
    assert bits_agree(t, compressed.sparse_all_reduce(t, indices, values, 50))


@ranks(1, 2, 3, 4, 5, 8)
def test_sparse_bytes_equal_the_formula(t):
    n, r = t.size, t.rank
    k = [3 * rank % 5 for rank in range(n)]
    ledger = Ledger(t)
    compressed.sparse_all_reduce(ledger, np.arange(k[r]), np.ones(k[r]), 100)
    expected = 8 * (n - 1) + 8 * (sum(k) - k[(r + 1) % n])
    assert (ledger.bytes_sent, ledger.messages_sent) == (expected, 2 * (n - 1))


@ranks(1, 2, 3, 4, 8)
def test_ranks_with_equally_many_pairs_send_no_lengths(t):
    rng = np.random.default_rng(t.rank)
    index, value = rng.permutation(50)[:7], rng.normal(size=7)
    ledger = Ledger(t)
    result = compressed.sparse_all_reduce(ledger, index, value, 50, equal=True)
    assert (result == compressed.sparse_all_reduce(t, index, value, 50)).all()
    assert (ledger.bytes_sent, ledger.messages_sent) == (8 * 7 * (t.size - 1), t.size - 1)


@pytest.mark.parametrize("rho", [1 / 1000, 1 / 100, 1 / 4])
@ranks(2, 4, 8)
def test_the_gain_over_the_dense_ring_is_1_over_n_rho(t, rho):
    n, length = t.size, 16000
    k = round(rho * length)
    dense, sparse = Ledger(t), Ledger(t)
    ring.all_reduce(dense, np.ones(length, "f4"))
    compressed.sparse_all_reduce(sparse, np.arange(k), np.ones(k), length)
    pairs = sparse.bytes_sent - 8 * (n - 1)  # the lengths, which do not grow with the array
    assert dense.bytes_sent * k * n == pairs * length  # dense / pairs = L / (n k) = 1 / (n rho)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 64])
def test_time_equals_the_formula(n):
    alpha, beta = 2.0**-10, 2.0**-20  # sums of them are exact in floating point

    def measured(fn):
        def body(t):
            ledger = Ledger(t)
            fn(ledger)
            return ledger.messages_sent, ledger.bytes_sent, t.time()

        return tuple(np.max(simulate(n, body, alpha=alpha, beta=beta), axis=0))

    got = measured(lambda t: compressed.all_reduce(t, np.ones(64 * n, "f4"), codec.FP16))
    assert got == (2 * (n - 1), 2 * (n - 1) * 128, (n > 1) * n * alpha + 2 * (n - 1) * 128 * beta)
    got = measured(lambda t: compressed.sparse_all_reduce(t, np.arange(8), np.ones(8), 99))
    lengths_and_pairs = 8 + 8 * 8
    time_s = (n - 1) * (2 * alpha + lengths_and_pairs * beta)
    assert got == (2 * (n - 1), (n - 1) * lengths_and_pairs, time_s)


def test_the_next_block_is_encoded_while_one_is_on_its_way():
    def body(t):
        def encode(x):
            begun.append(t.time())
            return codec.FP16.encode(x)

        begun = []
        compressed.all_reduce(t, np.ones(64, "f4"), codec.FP16._replace(encode=encode))
        return begun[:3]  # of the blocks for the three others

    assert simulate(4, body, alpha=1.0, beta=1.0) == [[0.0] * 3] * 4


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_sends_that_wait_for_their_receives_do_not_lock(n):
    def body(t):
        compressed.all_reduce(t, np.ones(10))
        compressed.sparse_all_reduce(t, np.arange(t.rank), np.ones(t.rank), 10)

    simulate(n, body, rendezvous_bytes=0)


@ranks(3, 4)
def test_on_a_subgroup(t):
    group = t.subgroup([t.size - 1, 0])
    if group is not None:
        assert (compressed.all_reduce(group, np.ones(5, "f4")) == 2).all()
        sparse = compressed.sparse_all_reduce(group, np.array([group.rank]), np.ones(1), 2)
        assert (sparse == 1).all()


@pytest.mark.parametrize("dtype", ["i8", "u1", "?"])
@ranks(1, 2, 3, 4)
def test_integers_are_summed_exactly(t, dtype):
    x = (np.arange(11) % (t.rank + 2) * (17 if dtype == "u1" else 1)).astype(dtype)
    expected = naive.all_reduce(t, x.copy())
    assert (compressed.all_reduce(t, x) == expected).all() and (x == expected).all()


@pytest.mark.parametrize("coding", [codec.FP16, codec.INT8])
@ranks(2, 3, mpi=False)
def test_bfloat16_is_added_in_float32_like_float16(t, coding):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.linspace(-3, 3, 50).astype(bfloat16) * bfloat16(t.rank + 1)
    expected = compressed.all_reduce(t, x.astype(np.float32), coding).astype(bfloat16)
    assert (compressed.all_reduce(t, x, coding) == expected).all() and x.dtype == bfloat16


def test_a_mean_of_integers_is_refused():
    with pytest.raises(RankFailed, match="needs a floating point array; got int64"):
        simulate(2, lambda t: compressed.mean(t, np.arange(4)))


def test_an_index_beyond_the_length_is_refused():
    with pytest.raises(RankFailed, match="wanted indices below the length 4; got 4"):
        simulate(2, lambda t: compressed.sparse_all_reduce(t, np.array([1, 4]), np.ones(2), 4))


def test_pairs_that_do_not_fit_are_refused_by_name_of_the_rank():
    with pytest.raises(RankFailed, match="rank 0: ValueError: rank 0: .index, value. pairs want"):
        simulate(2, lambda t: compressed.sparse_all_reduce(t, np.arange(3), np.ones(2), 4))


@ranks(2, 3, 4, mpi=False)
def test_a_watched_transport_accepts_pairs_that_differ_between_ranks(t):
    t = Watch(t)
    total = compressed.sparse_all_reduce(t, np.arange(t.rank), np.ones(t.rank), t.size)
    assert (total == np.arange(t.size)[::-1]).all()
    assert (compressed.all_reduce(t, np.ones(4), codec.FP16) == t.size).all()

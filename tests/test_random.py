"""Tests random numbers: the paper's cipher, the state of three integers, distributions and
shapes."""

import contextvars

import numpy as np
import pytest

import minidl
from minidl import Generator, random

MASK = (1 << 64) - 1


def philox(counter, key):
    """Returns one block of Philox-4x64-10, computed in plain Python by the paper's section 3.3 and
    table 2."""
    c = [counter >> 64 * i & MASK for i in range(4)]
    k = [key & MASK, key >> 64 & MASK]
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [high >> 64 ^ c[1] ^ k[0], high & MASK, low >> 64 ^ c[3] ^ k[1], low & MASK]
        # the golden ratio and sqrt(3) - 1, as 64-bit fractions
        k = [k[0] + 0x9E3779B97F4A7C15 & MASK, k[1] + 0xBB67AE8584CAA73B & MASK]
    return c


# from Random123's file of known answers (kat_vectors, philox4x64 10)
KNOWN = [
    (0, 0, [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]),
    ((1 << 256) - 1, (1 << 128) - 1,
     [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]),
]


@pytest.mark.parametrize("counter, key, words", KNOWN)
def test_the_plain_cipher_gives_the_known_answers(counter, key, words):
    assert philox(counter, key) == words


@pytest.mark.parametrize("counter, key, words", KNOWN)
def test_the_generator_gives_the_known_answers(counter, key, words):
    g = Generator(key & MASK, key >> 64)
    g.counter = counter
    assert g.bits(8).view(np.uint64).tolist() == words


def test_the_generator_is_the_plain_cipher_at_every_counter():
    seed, stream = 0x123456789ABCDEF0, 77
    g = Generator(seed, stream)
    bits = g.bits(8 * 20).view(np.uint64).reshape(20, 4)
    for counter in range(20):
        assert bits[counter].tolist() == philox(counter, seed | stream << 64)


def test_the_state_replays():
    g = Generator(5, stream=2)
    g.normal(13)
    state = g.get_state()
    assert state == (5, 2, 2)  # 13 numbers take 14 draws, which are two blocks of eight
    first = g.uniform(100), g.normal(7, 3), g.permutation(10)
    g.set_state(state)
    again = g.uniform(100), g.normal(7, 3), g.permutation(10)
    for a, b in zip(first, again):
        assert np.array_equal(a, b)
    other = Generator()
    other.set_state(state)
    assert np.array_equal(other.uniform(100), first[0])


@pytest.mark.parametrize("n, blocks", [(0, 0), (1, 1), (8, 1), (9, 2), (16, 2)])
def test_the_counter_moves_by_whole_blocks_of_eight(n, blocks):
    g = Generator(1)
    assert g.bits(n).shape == (n,) and g.counter == blocks


def test_draw_i_of_a_long_request_is_draw_i_of_a_short_one():
    assert np.array_equal(Generator(3).bits(100)[:9], Generator(3).bits(9))


def test_seeds_and_streams_differ():
    draws = [Generator(s, t).bits(64) for s in (0, 1, 2**63) for t in (0, 1, 2**63)]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            # a draw of a equals the draw of b at the same place with a probability of 2**-32
            assert (a == b).mean() < 0.1


def test_seed_and_stream_have_64_bits():
    for wrong in [(-1, 0), (1 << 64, 0), (0, 1 << 64)]:
        with pytest.raises(ValueError, match=r"must be in \[0, 2\*\*64\)"):
            Generator(*wrong)


def test_a_draw_of_zero_gives_a_finite_gaussian():
    # one of 2**32 draws is 0, which has no logarithm
    class Zeros(Generator):
        def bits(self, n, draw=None):
            return np.zeros(n, np.uint32)

    assert np.isfinite(Zeros().normal(4)).all()


def test_uniform_is_flat_and_below_one():
    u = Generator(7).uniform(100_000, dtype=np.float64)
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, 20, (0, 1))[0]
    chi2 = ((counts - 5000) ** 2 / 5000).sum()
    assert chi2 < 50.8  # 19 degrees of freedom; one of 10,000 seeds exceeds this by chance
    assert np.array_equal(u * 2**24, np.floor(u * 2**24))  # 24 bits are exact in float32
    v = Generator(7).uniform(1000, low=-2.0, high=3.0)
    assert v.dtype == np.float32 and -2 <= v.min() < -1.9 and 2.9 < v.max() <= 3


def test_normal_has_the_moments_and_the_tails():
    z = Generator(8).normal(100_000, dtype=np.float64)
    # each moment of z may differ from the moment of a normal distribution by 4 standard errors
    se = 1 / np.sqrt(z.size)
    assert abs(z.mean()) < 4 * se and abs(z.var() - 1) < 4 * se * 2**0.5
    assert abs((z**3).mean()) < 4 * se * 15**0.5 and abs((z**4).mean() - 3) < 4 * se * 96**0.5
    assert 4 < np.abs(z).max() < 6  # P(some |z| > 6) = 2e-4, P(none > 4) = 2e-3
    w = Generator(8).normal(4, 5, mean=3.0, std=2.0)
    assert w.shape == (4, 5) and w.dtype == np.float32
    np.testing.assert_allclose(w.reshape(-1), 3 + 2 * z[:20], rtol=1e-5)


def test_normal_pairs_are_uncorrelated():
    z = Generator(9).normal(100_000, dtype=np.float64).reshape(-1, 2)
    assert abs((z[:, 0] * z[:, 1]).mean()) < 4 / np.sqrt(len(z))


def test_integers_cover_their_range_evenly():
    k = Generator(10).integers(-3, 7, (50_000,))
    assert k.dtype == np.int64
    counts = np.bincount(k + 3, minlength=10)
    # 9 degrees of freedom; one of 10,000 seeds exceeds this by chance
    assert len(counts) == 10 and ((counts - 5000) ** 2 / 5000).sum() < 33.7
    assert Generator(0).integers(0, 1 << 32, (3,)).shape == (3,)
    for low, high in [(0, 0), (5, 4), (0, (1 << 32) + 1)]:
        with pytest.raises(ValueError, match="integers needs"):
            Generator(0).integers(low, high)


def test_permutation_holds_every_number_once_in_another_order():
    p = Generator(11).permutation(1000)
    assert np.array_equal(np.sort(p), np.arange(1000)) and (p == np.arange(1000)).mean() < 0.02
    first = [int(Generator(s).permutation(3)[0]) for s in range(600)]
    counts = np.bincount(first, minlength=3)
    assert ((counts - 200) ** 2 / 200).sum() < 18.4  # 2 degrees; 1 of 10,000 exceeds this


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3, 4)])
def test_shapes(shape):
    g = Generator(0)
    for a in (g.uniform(shape), g.normal(shape), g.integers(0, 9, shape), g.normal(*shape)):
        assert a.shape == shape


def test_the_default_generator_is_seeded_per_context():
    def draws():
        minidl.manual_seed(4)
        return minidl.rand(3).tolist()

    minidl.manual_seed(1)
    first = minidl.rand(3).tolist()
    minidl.manual_seed(1)
    inside = contextvars.copy_context().run(draws)  # like another rank of the simulator
    assert minidl.rand(3).tolist() == first
    assert inside == minidl.rand(3, generator=Generator(4)).tolist()


def test_each_greenlet_with_a_context_of_its_own_has_its_own_generator():
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()
    drawn = {}

    def rank(r):
        minidl.manual_seed(0, stream=r)
        main.switch()  # now the other rank seeds its generator
        drawn[r] = minidl.rand(4).tolist()

    ranks = [greenlet.greenlet(lambda r=r: rank(r)) for r in range(2)]
    for g in ranks * 2:
        g.switch()
    for r in range(2):
        assert drawn[r] == Generator(0, stream=r).uniform(4).tolist()


def test_repr_tells_the_state():
    g = Generator(3, 4)
    g.bits(9)
    assert repr(g) == "Generator(seed=3, stream=4) at counter 2"
    assert random.default_generator() is random.default_generator()


def test_a_generator_begins_again_with_another_seed():
    generator = minidl.Generator(3, stream=7)
    generator.uniform(5)
    assert generator.manual_seed(9) is generator
    assert np.array_equal(generator.bits(4), minidl.Generator(9, stream=7).bits(4))
    with pytest.raises(ValueError, match="seed must be"):
        generator.manual_seed(-1)

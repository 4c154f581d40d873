"""The page with and without recompute, and the real one: the same gradients, and the memory that
the page's formula says."""

import gc
import weakref

import numpy as np
import pytest

import minidl
from minidl.memory.recompute import recompute_sequential
from minidl.memory.saved_bytes import saved_bytes
from minidl.plain import recompute
from minidl.plain.autograd import Tensor, grad

N, ROWS, WIDTH = 9, 5, 4
RNG = np.random.default_rng(12)
X, G, WEIGHTS = RNG.normal(size=(ROWS, WIDTH)), RNG.normal(size=(ROWS, WIDTH)), [
    RNG.normal(size=(WIDTH, WIDTH)) / 2 for _ in range(N)]


def segment(x, *weights):
    for w in weights:
        x = (x @ w).tanh()
    return x


def plain(n_segments):
    """(results kept, gradients of x and all weights) on the page."""
    x, weights = Tensor(X), [Tensor(w) for w in WEIGHTS]
    y = x
    for part in np.array_split(np.arange(N), n_segments) if n_segments else [range(N)]:
        some = [weights[i] for i in part]
        y = recompute.recompute(segment, y, *some) if n_segments else segment(y, *some)
    return recompute.kept(y), [g.array for g in grad((y * G).sum(), [x, *weights])]


def real(n_segments):
    """(bytes kept, gradients) of the real one."""
    x, *weights = (minidl.tensor(a, requires_grad=True) for a in (X, *WEIGHTS))
    layers = [lambda x, w=w: (x @ w).tanh() for w in weights]
    y = recompute_sequential(layers, x, n_segments) if n_segments else segment(x, *weights)
    n_bytes = saved_bytes(y)
    (y * minidl.tensor(G)).sum().backward()
    return n_bytes, [leaf.grad.numpy() for leaf in (x, *weights)]


@pytest.mark.parametrize("n_segments", [1, 2, 3, 9])
def test_gradients_have_the_bits_of_those_without(n_segments):
    for ours, want in zip(plain(n_segments)[1], plain(0)[1], strict=True):
        np.testing.assert_array_equal(ours, want)
    for ours, want in zip(real(n_segments)[1], real(0)[1], strict=True):
        np.testing.assert_array_equal(ours, want)


@pytest.mark.parametrize("n_segments", [0, 1, 3])
def test_gradients_are_the_real_ones(n_segments):
    for ours, want in zip(plain(n_segments)[1], real(n_segments)[1], strict=True):
        # float64; both engines do the same products, in layouts that BLAS may sum differently
        np.testing.assert_allclose(ours, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("n_segments", [1, 3, 9])
def test_what_is_kept(n_segments):
    assert plain(0)[0] == 2 * N  # two operations a layer
    assert plain(n_segments)[0] == n_segments  # each segment is one
    # the real one keeps a segment's input; that of the first is a leaf, which is not counted
    assert real(n_segments)[0] == (n_segments - 1) * X.nbytes


def test_backward_holds_the_results_of_one_segment_at_a_time(monkeypatch):
    """Red before: the gradients had parents and kept all segments alive, so with segments more was
    held than without them."""
    alive, counts, init = weakref.WeakSet(), [], Tensor.__init__

    def counted(self, *args):
        init(self, *args)
        alive.add(self)
        gc.collect()  # `visit` of the page autograd is in a cycle with its list of Tensors
        counts.append(len(alive))

    gc.freeze()  # so that collecting takes no time
    monkeypatch.setattr(Tensor, "__init__", counted)

    def most(n_segments, n=64):
        def layers(x, w, n_layers):
            for _ in range(n_layers):
                x = x * w
            return x

        x, w = Tensor(1.0), Tensor(1.0)
        y = x if n_segments else layers(x, w, n)
        for _ in range(n_segments):
            y = recompute.recompute(lambda x, w: layers(x, w, n // n_segments), y, w)
        counts.clear()
        grad(y, [x, w])
        return max(counts), len(counts)

    (all_alive, made), (alive_by_8, made_by_8) = most(0), most(8)
    assert alive_by_8 < all_alive / 3  # about 8 inputs and 64 / 8 layers, with their gradients
    assert made_by_8 < 2 * made

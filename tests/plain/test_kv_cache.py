"""The page and the real ones: the same attention with a cache, and the same text of a real GPT."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.infer.cache import CachedAttention
from minidl.plain import kv_cache
from minidl.tensor import Tensor

WIDTH, LENGTH = 8, 19  # more than one block of 16 keys


def test_a_step_is_the_real_cached_attention():
    rng = np.random.default_rng(0)
    qkv = rng.normal(size=(LENGTH, 3, WIDTH)).astype("f4")
    keys, values = np.zeros((1, 1, 2, WIDTH, 16), "f4"), np.zeros((1, 1, 32, WIDTH), "f4")
    cache, whole = ([], []), kv_cache.attend_all(*qkv.astype("f8").swapaxes(0, 1))
    for t in range(LENGTH):
        with minidl.no_grad():
            want = CachedAttention.apply(
                Tensor(qkv[t].reshape(1, 1, -1)), Tensor(np.array([t])), keys, values, None,
                n_heads=1, n_kv=1).array[0, 0]
        o = kv_cache.attend_next(cache, *qkv[t].astype("f8"))
        np.testing.assert_allclose(o, whole[t], rtol=1e-13, atol=1e-14)  # one row of the same sums
        # the real one has 24 bits: sums of 8 and of 19 terms of size 1 to 4
        np.testing.assert_allclose(o, want, rtol=0, atol=5e-6)
    np.testing.assert_array_equal(np.array(cache[1], "f4"), values[0, 0, :LENGTH])


def test_both_ways_write_the_same_text():
    rng = np.random.default_rng(1)
    for _ in range(10):
        model = {name: rng.normal(size=(WIDTH, WIDTH)) for name in ("wq", "wk", "wv", "wo")}
        model["token"] = rng.normal(size=(WIDTH, WIDTH))
        ids = rng.integers(0, WIDTH, 3).tolist()
        text = kv_cache.generate(model, ids, 12)
        assert text == kv_cache.generate_again(model, ids, 12)
        assert text[:3] == ids and len(text) == 15


@pytest.mark.parametrize("seed", range(2))
def test_the_real_decoder_writes_what_the_whole_computation_does(seed):
    """The page's loop without a cache, around a real GPT."""
    minidl.manual_seed(seed)
    gpt = nn.GPT(11, 24, WIDTH, 2, 2).eval()
    ids = [3, 1, 4, 1, 5]
    text = list(ids)
    for _ in range(9):
        with minidl.no_grad():
            text.append(int(gpt(minidl.tensor(np.array([text]))).array[0, -1].argmax()))
    step = infer.decoder(gpt, context=24)
    assert step.generate(np.array([ids]), 9, temperature=0)[0].tolist() == text
    assert sum(a.nbytes for pair in step.caches for a in pair) == (
        2 * (24 + 32) * WIDTH * 4), "2 layers; 24 values, and keys in whole blocks of 16"


@pytest.mark.parametrize("n", [1, 7])
def test_prefill_leaves_what_single_steps_leave(n):
    rng = np.random.default_rng(2)
    model = {name: rng.normal(size=(WIDTH, WIDTH)) for name in ("token", "wq", "wk", "wv", "wo")}
    ids = rng.integers(0, WIDTH, n).tolist()
    whole, steps = ([], []), ([], [])
    scores = kv_cache.prefill(model, whole, ids)
    for token in ids:
        want = kv_cache.predict_next(model, steps, token)
    # sums of 8 terms, in the order of a matrix product and of vectors
    np.testing.assert_allclose(scores, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(whole, steps, rtol=1e-13, atol=1e-13)

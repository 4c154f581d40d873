"""A decoder with a cache gives the logits of the whole text, and draws as asked."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.infer.cache import n_bytes
from minidl.infer.decoder import nucleus
from tests.infer.models import same


def gpt(seed=0):
    minidl.manual_seed(seed)
    model = nn.GPT(30, 16, n_layers=2, n_heads=2, width=32).eval()
    with minidl.no_grad():
        for p in model.parameters():
            p.mul_(4.0)  # so that the texts matter: at first all logits are near 0
    return model


def llama(n_kv_heads=2, seed=0, **options):
    minidl.manual_seed(seed)
    model = nn.Llama(30, 16, n_layers=2, n_heads=4, width=32, n_kv_heads=n_kv_heads,
                     **options).eval()
    with minidl.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(4.0)
    return model


@pytest.mark.parametrize("make", [
    gpt, llama, lambda: llama(4), lambda: llama(1, head_width=6)],
    ids=["gpt", "llama", "a head of keys each", "one head of keys"])
def test_every_position_equals_the_whole_text_computed_anew(make):
    model, step = make(), infer.decoder(make(), n_texts=2)
    ids = np.random.default_rng(0).integers(0, 30, (2, 16))
    for n_prompt in (1, 5, 16):  # 5: padded to 8
        with minidl.no_grad():
            whole = model(ids).array
        same(step.prefill(ids[:, :n_prompt]), whole[:, n_prompt - 1])
        for i in range(n_prompt, 16):
            same(step.step(ids[:, i]), whole[:, i])
    plans = [launch for plan in step.plans.values() for launch in plan.launches if launch.eager]
    assert [launch.op for launch in plans] == ["index_select"] * 2  # plans of 8 and of 16 tokens


@pytest.mark.parametrize("head", [3, 8, 20, 72])
def test_heads_of_any_width_look_at_more_than_a_block_of_keys(head):
    """72 numbers are four vectors of 16 and some left; 40 keys are two blocks and a half."""
    minidl.manual_seed(1)
    model = nn.GPT(30, 40, n_layers=1, n_heads=2, width=2 * head).eval()
    with minidl.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    ids = np.random.default_rng(2).integers(0, 30, (1, 40))
    step = infer.decoder(model)
    with minidl.no_grad():
        whole = model(ids).array
    for i in range(40):
        same(step.step(ids[:, i]) if i else step.prefill(ids[:, :1]), whole[:, i])


def test_heads_of_keys_that_are_shared_make_the_cache_smaller():
    step = infer.decoder(llama(1), n_texts=3)
    keys, values = step.caches[0]
    assert keys.shape == (3, 1, 1, 8, 16) and values.shape == (3, 1, 16, 8)
    assert sum(a.nbytes for pair in step.caches for a in pair) == n_bytes(2, 3, 16, 1, 8)
    step = infer.decoder(llama(2, head_width=6), context=13)  # no whole number of blocks
    assert sum(a.nbytes for pair in step.caches for a in pair) == n_bytes(2, 1, 13, 2, 6)
    step = infer.decoder(llama(1), n_texts=3)
    ids = np.array([[3, 1, 4], [1, 5, 9], [2, 6, 5]])
    want = llama(1).generate(ids, 10, temperature=0)
    np.testing.assert_array_equal(step.generate(ids, 10, temperature=0), want)
    assert infer.decoder(llama(), weights="int8").generate(ids[:1], 5).shape == (1, 8)


def test_the_likeliest_text_is_the_models_own():
    ids = np.array([[3, 1, 4], [1, 5, 9]])
    step = infer.decoder(gpt(), n_texts=2)
    want = gpt().generate(ids, 10, temperature=0)
    np.testing.assert_array_equal(step.generate(ids, 10, temperature=0), want)
    np.testing.assert_array_equal(step.generate(ids, 0), ids)


def test_draws_follow_the_seed_as_the_models_do():
    ids = np.array([[3, 1, 4], [1, 5, 9]])
    step = infer.decoder(gpt(), n_texts=2)

    def drawn(seed, by=step, **options):
        return by.generate(ids, 8, generator=minidl.Generator(seed), **options).tolist()

    assert drawn(1) == drawn(1) == drawn(1, gpt()) != drawn(2)
    assert drawn(1, top_k=3, temperature=2.0) == drawn(1, gpt(), top_k=3, temperature=2.0)
    assert drawn(1, top_p=1e-6) == drawn(2, top_k=1)


def test_the_nucleus_is_the_fewest_that_make_p():
    logits = np.log(np.array([[0.1, 0.4, 0.2, 0.3]], np.float32))

    def kept(**options):
        wish = dict(temperature=1.0, top_k=None, top_p=None) | options
        return np.flatnonzero(nucleus(logits, **wish)[0] > -np.inf).tolist()

    assert kept(top_p=0.4 - 1e-3) == [1] and kept(top_p=0.4 + 1e-3) == [1, 3]
    assert kept(top_p=1.0) == kept() == [0, 1, 2, 3]
    assert kept(top_p=0.5, top_k=2) == [1]  # 0.4 of the two's 0.7 is more than half
    assert kept(top_p=0.6, temperature=0.1) == [1]
    with pytest.raises(ValueError, match="top_p=0"):
        kept(top_p=0.0)


def test_more_than_the_context_is_refused():
    step = infer.decoder(gpt(), n_texts=2)
    with pytest.raises(ValueError, match="17 more tokens do not fit in a context of 16"):
        step.prefill(np.zeros((2, 17), int))
    step.prefill(np.zeros((2, 16), int))
    with pytest.raises(ValueError, match="16 tokens, and 1 more"):
        step.step([1, 1])
    with pytest.raises(ValueError, match="positions for 16"):
        infer.decoder(gpt(), context=17)
    with pytest.raises(ValueError, match=r"want integers of shape \(2, T\)"):
        step.prefill(np.zeros((1, 3), int))
    with pytest.raises(TypeError, match="wants an nn.GPT or nn.Llama"):
        infer.decoder(nn.Linear(2, 2))
    with pytest.raises(IndexError, match="rows 0 to 29"):
        step.prefill(np.array([[30, 1], [1, 1]]).repeat(3, 1))


def test_a_changed_weight_is_noticed():
    model = gpt()
    step = infer.decoder(model, n_texts=2)
    step.prefill(np.ones((2, 5), int))
    with minidl.no_grad():
        model.norm.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="norm.weight has changed.*make a new Decoder"):
        step.step([1, 1])

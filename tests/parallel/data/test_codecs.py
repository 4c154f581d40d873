"""minidl/parallel/data/codecs.py: the bytes of comm/codec.py, by kernels."""

import numpy as np
import pytest

from minidl import comm
from minidl.comm import codec
from minidl.cuda import dispatch
from minidl.parallel.data import codecs, compress

pytestmark = pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler")
LENGTHS = [0, 1, 5, 1023, 1024, 1025, 2047, 5000, 65537]


def numbers(length):
    """Of many sizes: rows of zeros, subnormal rows, a row with one large element."""
    rng = np.random.default_rng(length)
    x = rng.standard_normal(length) * 10.0 ** rng.integers(-6, 4, length)
    x[1024:2048] = 0
    x[2048:3072] *= 1e-41
    x[3072:3073] = 6e4
    return x.astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["FP16", "INT8"])
def test_payloads_and_what_they_decode_to_are_the_codecs_to_the_bit(name, length):
    slow = getattr(codec, name)
    fast = compress.BY_KERNELS[slow]
    x = numbers(length)
    payload = fast.encode(x)
    assert payload.tobytes() == slow.encode(x).tobytes()
    assert len(payload) == slow.n_bytes(length)
    decoded = fast.decode(payload, length)
    assert decoded.dtype == np.float32
    assert decoded.tobytes() == slow.decode(payload, length).tobytes()


def test_a_payload_may_begin_at_any_byte():
    x = numbers(2500)
    for fast in compress.BY_KERNELS.values():
        payload = fast.encode(x)
        shifted = np.empty(len(payload) + 2, np.uint8)[2:]  # as in an all-gather's buffer
        shifted[...] = payload
        assert fast.decode(shifted, 2500).tobytes() == fast.decode(payload, 2500).tobytes()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_row_with_a_number_that_is_none_decodes_to_nan_and_its_neighbours_stay(bad):
    x = numbers(3000)
    x[100] = bad
    assert codecs.encode_int8(x).tobytes() == codec.encode_int8(x).tobytes()
    decoded = codecs.decode_int8(codecs.encode_int8(x), 3000)
    assert np.isnan(decoded[:1024]).all() and np.isfinite(decoded[1024:]).all()


def test_error_feedback_uses_them(monkeypatch):
    used = []
    monkeypatch.setitem(compress.BY_KERNELS, codec.FP16, codec.FP16._replace(
        encode=lambda x: used.append(x.size) or codec.encode_fp16(x)))

    class Bucket:
        flat, own = np.ones(10, np.float32), {"residual": np.zeros(10, np.float32)}

    def body(t):
        compress.ErrorFeedback(codec.FP16).reduce(t, Bucket)

    comm.simulate(2, body)
    assert used

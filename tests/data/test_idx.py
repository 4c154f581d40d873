"""minidl/data/idx.py: the bytes are the format's, and damage is named."""

import gzip

import numpy as np
import pytest

from minidl.data import idx

# By hand from the format's description: type int16, two dimensions, sizes 2 and 3, the elements.
GOLDEN = bytes.fromhex("00000b02 00000002 00000003 0001 0002 ffff 0100 7fff 8000")
GOLDEN_ARRAY = np.array([[1, 2, -1], [256, 32767, -32768]], np.int16)


def test_read_understands_golden_bytes(tmp_path):
    path = tmp_path / "golden"
    path.write_bytes(GOLDEN)
    array = idx.read(path)
    assert array.dtype == np.int16 and array.dtype.isnative
    np.testing.assert_array_equal(array, GOLDEN_ARRAY)


def test_write_makes_the_golden_bytes(tmp_path):
    idx.write(tmp_path / "plain", GOLDEN_ARRAY)
    idx.write(tmp_path / "packed.gz", GOLDEN_ARRAY.astype(">i2"))  # whatever the order in memory
    assert (tmp_path / "plain").read_bytes() == GOLDEN
    packed = (tmp_path / "packed.gz").read_bytes()
    assert gzip.decompress(packed) == GOLDEN
    assert packed[4:8] == bytes(4)  # no hour in it: the same array makes the same file


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (4, 3, 2)])
def test_what_is_written_is_read(tmp_path, dtype, shape):
    rng = np.random.default_rng(0)
    array = (rng.normal(size=shape) * 50).clip(0, 100).astype(dtype)
    idx.write(tmp_path / "a.gz", array)
    back = idx.read(tmp_path / "a.gz")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_gzip_is_told_by_content_not_by_name(tmp_path):
    (tmp_path / "no_suffix").write_bytes(gzip.compress(GOLDEN))
    np.testing.assert_array_equal(idx.read(tmp_path / "no_suffix"), GOLDEN_ARRAY)


@pytest.mark.parametrize(
    "raw, message",
    [
        (b"", "truncated: an IDX header has at least 4 bytes, got 0"),
        (GOLDEN[:3], "truncated: an IDX header"),
        (GOLDEN[:9], "truncated: a header of 2 sizes has 12 bytes, got 9"),
        (GOLDEN[:-1], r"truncated: shape \(2, 3\) of 2-byte elements makes 24 bytes, got 23"),
        (GOLDEN + b"\0", "longer than its header says"),
        (b"\x89PNG\r\n", "not an IDX file: wanted 00 00 and a type among .*, got 89 50 4e 47"),
        (b"\0\0\x0a\x01" + bytes(8), "not an IDX file"),  # no such type
        (GOLDEN[3::-1] + GOLDEN[4:], "not an IDX file"),  # a little-endian magic number
        (gzip.compress(GOLDEN)[:-6], "damaged gzip file"),
    ],
    ids=["empty", "magic", "sizes", "data", "extra", "png", "type", "endian", "gzip"],
)
def test_a_damaged_file_is_an_error_that_says_how(tmp_path, raw, message):
    path = tmp_path / "damaged"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"damaged: {message}"):
        idx.read(path)


def test_a_type_that_idx_lacks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got int64. Convert with astype"):
        idx.write(tmp_path / "a", np.zeros(3, np.int64))
    assert not (tmp_path / "a").exists()

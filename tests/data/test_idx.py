"""minidl/data/idx.py: the bytes are the format's, and damage is named."""

import gzip

import numpy as np
import pytest

from minidl.data import idx
from tests.damaged import N, at_most, damaged

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
        (b"", "truncated: an IDX header has at least 4 bytes; got 0"),
        (GOLDEN[:3], "truncated: an IDX header"),
        (GOLDEN[:9], "truncated: a header of 2 sizes has 12 bytes; got 9"),
        (GOLDEN[:-1], r"truncated: a file of shape \(2, 3\) with 2-byte elements has 24 b.*got 23"),
        (GOLDEN + b"\0", "longer than its header says"),
        (b"\x89PNG\r\n", "not an IDX file: its first .* 00 00 and one of .*; got 89 50 4e 47"),
        (b"\0\0\x0a\x01" + bytes(8), "not an IDX file"),  # no such type
        (GOLDEN[3::-1] + GOLDEN[4:], "not an IDX file"),  # a little-endian magic number
        (gzip.compress(GOLDEN)[:-6], "damaged gzip file"),
    ],
    ids=["empty", "magic", "sizes", "data", "extra", "png", "type", "endian", "gzip"],
)
def test_a_damaged_file_is_an_error_that_says_how(tmp_path, raw, message):
    path = tmp_path / "damaged"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"damaged(:| is) {message}"):
        idx.read(path)


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_are_read_right_or_refused(tmp_path, packed):
    """gzip has a checksum, IDX has none: a plain file with other elements is another file."""
    array = np.random.default_rng(0).integers(0, 99, (20, 3)).astype(np.int16)
    path = tmp_path / ("a.gz" if packed else "a")
    idx.write(path, array)
    n_refused = 0
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        try:
            with at_most(2 << 20):
                found = idx.read(path, most_bytes=1 << 20)
            if packed:
                np.testing.assert_array_equal(found, array)
        except ValueError:
            n_refused += 1
    assert n_refused > N / 4


@pytest.mark.parametrize("head", [
    "00000801 00000010",  # 16 bytes, and a gigabyte behind them
    "00000801 40000000",  # a gigabyte, as it says
    "00000803 ffffffff ffffffff ffffffff", "000008ff" + "ffffffff" * 255,
    "00000821" + "00000001" * 33],
    ids=["longer", "large", "overflow", "255 dimensions", "33 dimensions"])
def test_a_gzip_bomb_takes_no_more_memory_than_allowed(tmp_path, head):
    bomb = tmp_path / "bomb.gz"
    zeros = gzip.compress(bytes(1 << 24))
    bomb.write_bytes(gzip.compress(bytes.fromhex(head)) + 64 * zeros)  # read as one stream
    with at_most(8 << 20), pytest.raises(ValueError):
        idx.read(bomb, most_bytes=1 << 20)
    if head == "00000801 00000010":
        with at_most(8 << 20), pytest.raises(ValueError, match="longer than its header says"):
            idx.read(bomb)


def test_a_file_that_says_a_terabyte_costs_what_it_has(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes.fromhex("00000802 00010000 00010000") + bytes(1000)))
    with at_most(8 << 20), pytest.raises(ValueError, match="a file of shape .*; got 1012"):
        idx.read(path, most_bytes=1 << 33)


def test_a_type_that_idx_lacks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got int64. Convert the array"):
        idx.write(tmp_path / "a", np.zeros(3, np.int64))
    assert not (tmp_path / "a").exists()

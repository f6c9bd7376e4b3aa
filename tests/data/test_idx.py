from __future__ import annotations

import gzip
import lzma
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convloom.data import idx
from convloom.data.errors import DataError
from tests.data.tiny import idx_bytes, sha256

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def header(code: int, *shape: int) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, code, len(shape), *shape)


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)
    return str(caught.value)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("code", TYPES)
def test_every_type_in_every_packing(tmp_path: Path, code: int, suffix: str) -> None:
    values = np.array([[[0, 1, 127], [3, 4, 5]]]).astype(TYPES[code])
    if values.dtype.kind != "u":
        values[0, 0, 0] = -2
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](header(code, 1, 2, 3) + values.tobytes()))
    array, digest = idx.read_with_digest(path)
    assert array.shape == (1, 2, 3)
    assert array.dtype == values.dtype.newbyteorder("=")
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, values)
    assert digest == sha256(header(code, 1, 2, 3) + values.tobytes())


def test_known_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes.fromhex("00000b02 00000002 00000001 0102 ff00"))
    np.testing.assert_array_equal(idx.read(path), np.array([[258], [-256]], np.int16))


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(0, 4), max_size=5),
    code=st.sampled_from(list(TYPES)),
    suffix=st.sampled_from(list(PACK)),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], code: int, suffix: str
) -> None:
    dtype = np.dtype(TYPES[code]).newbyteorder("=")
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    path = tmp_path_factory.mktemp("idx") / f"a{suffix}"
    idx.write(path, array)
    again = idx.read(path)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, array)


def test_the_packing_is_told_from_the_content(tmp_path: Path) -> None:
    content = idx_bytes(np.arange(6, dtype=np.uint8))
    (tmp_path / "plain.gz").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    for name in ("plain.gz", "packed"):
        np.testing.assert_array_equal(idx.read(tmp_path / name), np.arange(6))


def test_write_refuses_other_types(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the array is int64"):
        idx.write(tmp_path / "a", np.zeros(3, np.int64))


class TestDamage:
    images = idx_bytes(np.random.default_rng(0).integers(0, 256, (600, 28, 28)).astype(np.uint8))

    def test_half_of_a_gz(self, tmp_path: Path) -> None:
        packed = gzip.compress(self.images)
        for length in (len(packed) // 2, 40, len(packed) - 4):
            message = refused(tmp_path / "a.gz", packed[:length])
            assert "gzip data is damaged or cut short" in message

    def test_half_of_an_xz(self, tmp_path: Path) -> None:
        packed = lzma.compress(self.images)
        message = refused(tmp_path / "a.xz", packed[: len(packed) // 2])
        assert "promises 600 × 28 × 28" in message or "damaged or cut short" in message

    def test_a_flipped_bit_in_a_gz(self, tmp_path: Path) -> None:
        packed = bytearray(gzip.compress(self.images))
        packed[len(packed) // 2] ^= 4
        assert "a.gz" in refused(tmp_path / "a.gz", bytes(packed))

    def test_html_named_gz(self, tmp_path: Path) -> None:
        page = b"\n<!DOCTYPE html><html><body>404</body></html>"
        assert "a page of HTML" in refused(tmp_path / "a.gz", page)

    def test_one_row_too_few(self, tmp_path: Path) -> None:
        content = header(8, 60_000, 2, 2) + bytes(59_999 * 4)
        for pack, suffix in ((bytes, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz")):
            message = refused(tmp_path / f"a{suffix}", pack(content))
            assert "promises 60,000 × 2 × 2 uint8 = 240,000 bytes" in message
            assert "239,996 bytes, 59,999 of 60,000 rows, are there" in message

    def test_trailing_bytes(self, tmp_path: Path) -> None:
        for pack, suffix in ((bytes, ""), (gzip.compress, ".gz")):
            message = refused(tmp_path / f"a{suffix}", pack(self.images + b"\0"))
            assert "470,401 bytes" in message
            assert "bytes too many" in message

    def test_little_endian_magic(self, tmp_path: Path) -> None:
        message = refused(tmp_path / "a", struct.pack("<4I", 0x803, 2, 2, 2) + bytes(8))
        assert "little-endian" in message
        assert "03 08 00 00" in message

    def test_little_endian_sizes(self, tmp_path: Path) -> None:
        content = struct.pack(">I", 0x803) + struct.pack("<3I", 60, 28, 28) + bytes(60 * 784)
        for pack, suffix in ((bytes, ""), (gzip.compress, ".gz")):
            message = refused(tmp_path / f"a{suffix}", pack(content))
            assert "the header's sizes are little-endian" in message
            assert "60 × 28 × 28" in message

    def test_empty(self, tmp_path: Path) -> None:
        assert "the file is empty" in refused(tmp_path / "a", b"")

    def test_empty_gz(self, tmp_path: Path) -> None:
        assert "begins with nothing" in refused(tmp_path / "a", gzip.compress(b""))

    def test_cut_header(self, tmp_path: Path) -> None:
        message = refused(tmp_path / "a", header(8, 1, 2, 3)[:10])
        assert "expected 16 bytes for rank 3, it has 10" in message

    def test_foreign_magic(self, tmp_path: Path) -> None:
        assert "it begins 89 50 4e 47" in refused(tmp_path / "a", b"\x89PNG\r\n\x1a\n" + bytes(50))
        assert "not an idx file" in refused(tmp_path / "a", header(0x0A, 2) + bytes(2))

    def test_impossible_sizes_take_no_memory(self, tmp_path: Path) -> None:
        huge = header(0x0E, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(64)
        for pack, suffix in ((bytes, ""), (gzip.compress, ".gz")):
            assert "64 bytes" in refused(tmp_path / f"a{suffix}", pack(huge))

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"nothing\.gz: cannot be read: No such file"):
            idx.read(tmp_path / "nothing.gz")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot be read: Is a directory"):
            idx.read(tmp_path)

"""Files in the idx format of MNIST: arrays of any rank and element type.

    bytes 0-1   0
    byte  2     element type: 08 uint8, 09 int8, 0B int16, 0C int32, 0D float32, 0E float64
    byte  3     rank
    then        the size of each axis, 4 bytes each, then the elements in row-major order

All numbers are big-endian. Source: the format's description by LeCun, Cortes and Burges on the
MNIST page. A file may be plain, gzip or xz.
"""

from __future__ import annotations

import gzip
import lzma
import math
import os
import struct
from pathlib import Path

import numpy as np

from convloom.data.content import Content, opened
from convloom.data.errors import DataError
from convloom.files import write_bytes

#: {type byte: element type as it stands in a file}.
ELEMENT_TYPES: dict[int, np.dtype] = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}


def read(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an idx file, in native byte order and the header's shape.

    Raises:
        DataError: not idx, damaged, or not as long as its header says.
    """
    return read_with_digest(path)[0]


def read_with_digest(path: str | os.PathLike[str]) -> tuple[np.ndarray, str]:
    """``read``, and the SHA-256 of the decompressed file."""
    with opened(path) as content:
        dtype, shape = _read_header(content)
        array = _read_elements(content, dtype, shape)
        return array, content.sha256


def write(path: str | os.PathLike[str], array: np.ndarray) -> None:
    """Write an array as idx; compressed when the name ends in .gz or .xz.

    Raises:
        DataError: an element type or an axis that idx cannot hold.
        FileError: the file cannot be written.
    """
    types = {dtype.newbyteorder("="): code for code, dtype in ELEMENT_TYPES.items()}
    code = types.get(array.dtype.newbyteorder("="))
    if code is None:
        known = ", ".join(str(dtype) for dtype in types)
        raise DataError(f"idx holds {known}; the array is {array.dtype}, convert it first", path)
    if array.ndim > 255 or any(size >= 2**32 for size in array.shape):
        raise DataError(f"idx holds 255 axes below 2^32, the array is {array.shape}", path)
    header = struct.pack(f">4B{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    write_bytes(path, _compressed(path, header + array.astype(ELEMENT_TYPES[code]).tobytes()))


def _compressed(path: str | os.PathLike[str], content: bytes) -> bytes:
    suffix = Path(path).suffix
    if suffix == ".gz":
        return gzip.compress(content, mtime=0)  # no time stamp: the same array, the same file
    return lzma.compress(content) if suffix == ".xz" else content


def _read_header(content: Content) -> tuple[np.dtype, tuple[int, ...]]:
    path, magic = content.path, content.read(4)
    shown = magic.hex(" ")
    if len(magic) == 4 and magic[2:] == b"\0\0" and magic[1] in ELEMENT_TYPES:
        raise DataError(
            f"the header is little-endian: expected 00 00 type rank, it begins {shown}; idx files "
            "are big-endian, write it again in that order",
            path,
        )
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in ELEMENT_TYPES:
        known = ", ".join(f"{code:02x}" for code in ELEMENT_TYPES)
        raise DataError(
            f"not an idx file: expected 00 00, a type ({known}) and a rank, it begins "
            f"{shown or 'with nothing'}",
            path,
        )
    rank = magic[3]
    sizes = content.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise DataError(
            f"the header is cut short: expected {4 + 4 * rank} bytes for rank {rank}, it has "
            f"{content.consumed}; get the file again",
            path,
        )
    return ELEMENT_TYPES[magic[2]], struct.unpack(f">{rank}I", sizes)


def _read_elements(content: Content, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    start = content.consumed
    expected = math.prod(shape) * dtype.itemsize
    if expected > content.most - start:  # before memory is taken for what cannot be there
        raise _wrong_size(content, dtype, shape, content.rest())
    try:
        array = np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        promise = f"the header promises {_promise(dtype, shape)}"
        raise DataError(f"{promise}, more than this machine can hold", content.path) from error
    found = content.read_array(array)
    found += content.rest()
    if found != expected:
        raise _wrong_size(content, dtype, shape, found)
    return array if dtype.isnative else array.byteswap(inplace=True).view(dtype.newbyteorder("="))


def _wrong_size(content: Content, dtype: np.dtype, shape: tuple[int, ...], found: int) -> DataError:
    swapped = tuple(struct.unpack(f"<{len(shape)}I", struct.pack(f">{len(shape)}I", *shape)))
    if shape and math.prod(swapped) * dtype.itemsize == found:
        problem = (
            f"the header's sizes are little-endian: they read {_dims(shape)}, the {found:,} bytes "
            f"that follow fit {_dims(swapped)}; idx files are big-endian, write it again so"
        )
        return DataError(problem, content.path)
    row = math.prod(shape[1:]) * dtype.itemsize
    rows = f", {found / row:,.6g} of {shape[0]:,} rows," if shape and row else ""
    expected = math.prod(shape) * dtype.itemsize
    relation = "are there" if found < expected else "follow"
    return DataError(
        f"the header promises {_promise(dtype, shape)}, but {found:,} bytes{rows} {relation}; the "
        f"file {'is cut short' if found < expected else 'has bytes too many'}, get it again",
        content.path,
    )


def _promise(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    size = math.prod(shape) * dtype.itemsize
    return f"{_dims(shape)} {dtype.newbyteorder('=')} = {size:,} bytes"


def _dims(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in shape) or "one"

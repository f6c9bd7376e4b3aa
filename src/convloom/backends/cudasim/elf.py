"""Thread-local variables of a shared object: what a kernel keeps in static shared memory.

Read from the symbol table (System V ABI, "Object files"), so that the checkers can name variables
and know where one ends.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

_SYMBOL_TABLE = 2
_THREAD_LOCAL = 6
_SYMBOL = struct.Struct("<IBBHQQ")


class Variable(NamedTuple):
    """A static shared variable: its offset in the library's thread-local memory, its size."""

    offset: int
    nbytes: int
    name: str


def thread_local_variables(library: Path) -> list[Variable]:
    """The thread-local variables that a shared object defines, by offset.

    Raises:
        ValueError: the file is not a little-endian 64-bit ELF file.
    """
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{library} is not a little-endian 64-bit ELF file")
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, sections_at + i * entry) for i in range(count)
    ]
    found = set()
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        offset, size, names_at = section[4], section[5], sections[section[6]][4]
        for at in range(offset, offset + size, _SYMBOL.size):
            name, info, _, defined, value, nbytes = _SYMBOL.unpack_from(data, at)
            if info & 15 == _THREAD_LOCAL and defined and nbytes:
                end = data.index(b"\0", names_at + name)
                found.add(Variable(value, nbytes, plain_name(data[names_at + name : end].decode())))
    return sorted(found)


def plain_name(mangled: str) -> str:
    """The last identifier of a name mangled by the Itanium C++ ABI (``_ZZ4kernPfE4tile``)."""
    for match in re.finditer(r"E(\d+)", mangled):
        name = mangled[match.end() : match.end() + int(match.group(1))]
        rest = mangled[match.end() + len(name) :]
        if re.fullmatch(r"[A-Za-z_]\w*", name) and re.fullmatch(r"(_\d+_?|\.\d+)*", rest):
            return name
    return mangled

"""What compiling kernels has in common, whatever the compiler: digests, messages, parallel runs."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

#: A line that includes a file by quotes; its group is the file.
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)
_FIRST_ERROR = re.compile(r"^.*\berror:.*$", re.MULTILINE | re.IGNORECASE)
T = TypeVar("T")
R = TypeVar("R")


@cache
def source_digest(name: str, *roots: Path) -> str:
    """Digest of a source file and of every file that it includes by quotes.

    Files are looked for beside the including file, then in ``roots``, as compilers do.

    Raises:
        FileNotFoundError: a file is in none of these places.
    """
    digest, seen = hashlib.sha256(), set[Path]()
    todo = [_found(name, roots)]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        digest.update(f"{path.name}\0{text}\0".encode())
        todo.extend(_found(name, (path.parent, *roots)) for name in INCLUDE.findall(text))
    return digest.hexdigest()


def _found(name: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        path = Path(os.path.normpath(folder / name))
        if path.exists():
            return path
    raise FileNotFoundError(f"{name} does not exist in {', '.join(map(str, folders))}")


def refusal(command: Sequence[str], title: str, text: str, messages: str) -> str:
    """What to say of a kernel that the compiler refused; the whole story goes to a log.

    Args:
        command: the compiler.
        title: the kernel and its constants, ``relu(CHUNK=64)``.
        text: the translation unit.
        messages: what the compiler said.
    """
    stem = re.sub(r"\W+", "-", title.split("(")[0])
    handle, log = tempfile.mkstemp(prefix=f"convloom-{stem}-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{' '.join(command)}\n{text}\n{messages}")
    match = _FIRST_ERROR.search(messages)
    first = match.group(0).strip() if match else (messages.strip().splitlines() or ["?"])[-1]
    return f"could not compile the kernel {title}: {first} (full log: {log})"


@contextmanager
def announced(count: int, compiler: str) -> Iterator[None]:
    """Tells on stderr that ``count`` kernels are being compiled, and how long it took."""
    _say(f"compiling {count} kernel{'s' if count > 1 else ''} with {compiler} … ")
    start = time.perf_counter()
    try:
        yield
    except BaseException:
        _say("failed\n")
        raise
    _say(f"{time.perf_counter() - start:.1f} s\n")


def in_parallel(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``function`` of each item, on as many threads as this process has cores."""
    with ThreadPoolExecutor(usable_cores()) as threads:
        return list(threads.map(function, items))


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say(text: str) -> None:
    if sys.stderr is not None:  # None in a process without one, such as a daemon
        sys.stderr.write(text)
        sys.stderr.flush()

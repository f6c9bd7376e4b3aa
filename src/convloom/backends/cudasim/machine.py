"""The simulator at work: the runtime library, the kernels it has loaded, and their launches.

``Machine`` does it in this process. ``RemoteMachine`` has a child process do the same, because a
sanitizer must be loaded before everything else and ends its process when it finds something; arenas
are memory that both share. The child runs this very file as a program, so it imports nothing but
the standard library.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

#: Milliseconds between two looks at what else there is to do while a launch runs.
_PULSE = 100
#: Runtimes share the process's signal handlers, so their launches take turns.
_one_launch = threading.Lock()


class MachineError(Exception):
    """Kernels cannot be loaded, or the process that they run in has ended."""


class Pointer(NamedTuple):
    """An argument: an address in an arena."""

    arena: int
    offset: int


class Extent(NamedTuple):
    """Bytes of an arena that a launch may touch."""

    arena: int
    offset: int
    nbytes: int


class Call(NamedTuple):
    """One launch, in terms that hold in any process.

    Attributes:
        entry: index of the kernel in its library.
        arenas: all arenas of the plan; what of them is not ``open`` is closed to the kernel.
        cluster: blocks of a cluster.
    """

    library: str
    entry: int
    kernel: str
    arguments: tuple[Pointer | int | float, ...]
    blocks: int
    threads: int
    shared: int
    arenas: tuple[int, ...]
    open: tuple[Extent, ...]
    cluster: int = 1


class Settings(NamedTuple):
    """How launches run: see Config in kernels/cuda/sim/runtime/state.h."""

    workers: int = 1
    order: int = 0
    seed: int = 1
    patience: float = 60.0


#: (offset, bytes, name) of a static shared variable.
Variables = Sequence[tuple[int, int, str]]


class Launcher(Protocol):
    """What both machines offer."""

    def map_arena(self, number: int, descriptor: int, nbytes: int) -> None:
        """Make the file ``descriptor`` known as an arena."""
        ...

    def unmap_arena(self, number: int) -> None:
        """Forget an arena."""
        ...

    def load(self, library: str, count: int, variables: Variables) -> list[str]:
        """Load kernels; returns the letters of each one's parameters (entry.h)."""
        ...

    def launch(self, call: Call, settings: Settings) -> str:
        """Run a kernel; returns what was wrong, empty if nothing was."""
        ...


class _Variable(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
    )


class _Range(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_uint64))


class _Launch(ctypes.Structure):
    """Launch of kernels/cuda/sim/runtime/state.h."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("anchor", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("words", ctypes.c_void_p),
        ("blocks", ctypes.c_uint64),
        ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("variables", ctypes.POINTER(_Variable)),
        ("variable_count", ctypes.c_uint64),
        ("closed", ctypes.POINTER(_Range)),
        ("closed_count", ctypes.c_uint64),
        ("open", ctypes.POINTER(_Range)),
        ("open_count", ctypes.c_uint64),
    )


class _Library(NamedTuple):
    """A loaded library of kernels: addresses of its entries, and what the checkers must know."""

    handle: ctypes.CDLL
    entries: list[int]
    letters: list[str]
    variables: ctypes.Array[_Variable]


#: Runtimes of this process, by file name, which says all that made them.
_runtimes: dict[str, ctypes.CDLL] = {}


class Machine:
    """Runs kernels in this process; one launch at a time."""

    def __init__(self, runtime: str) -> None:
        # Not RTLD_GLOBAL: kernels name their runtime, and one process may hold several. Of two
        # copies, in two caches, kernels would find the first, so nobody may use the second.
        name = os.path.basename(runtime)
        self._runtime = _runtimes.get(name) or ctypes.CDLL(runtime)
        _runtimes[name] = self._runtime
        self._runtime.convloom_sim_error.restype = ctypes.c_char_p
        self._runtime.convloom_sim_configure.argtypes = (
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_double,
        )
        self._libraries: dict[str, _Library] = {}
        self._arenas: dict[int, tuple[mmap.mmap, int, int]] = {}

    def map_arena(self, number: int, descriptor: int, nbytes: int) -> None:
        """Make the file ``descriptor`` known as an arena."""
        memory = mmap.mmap(descriptor, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._arenas[number] = memory, address, nbytes

    def unmap_arena(self, number: int) -> None:
        """Forget an arena."""
        self._arenas.pop(number, None)

    def load(self, library: str, count: int, variables: Variables) -> list[str]:
        """Load kernels; returns the letters of each one's parameters (entry.h).

        Raises:
            MachineError: the loader refused the library.
        """
        try:
            handle = ctypes.CDLL(library)
        except OSError as error:
            raise MachineError(
                f"compiled kernels cannot be loaded ({error}); set CONVLOOM_CACHE to a folder from "
                "which programs may run (not mounted noexec)"
            ) from None
        letters = []
        for index in range(count):
            function = handle[f"convloom_sim_letters_{index}"]
            function.restype = ctypes.c_char_p
            letters.append(function().decode())
        self._libraries[library] = _Library(
            handle=handle,
            entries=[_address(handle[f"convloom_sim_entry_{i}"]) for i in range(count)],
            letters=letters,
            variables=(_Variable * len(variables))(
                *(_Variable(offset, nbytes, name.encode()) for offset, nbytes, name in variables)
            ),
        )
        return letters

    def launch(self, call: Call, settings: Settings) -> str:
        """Run a kernel; returns what was wrong, empty if nothing was."""
        library = self._libraries[call.library]
        letters = library.letters[call.entry]
        words = (ctypes.c_uint64 * max(1, len(letters)))(
            *(self._word(a, t) for a, t in zip(call.arguments, letters, strict=True))
        )
        closed = self._ranges([(n, 0, self._arenas[n][2]) for n in call.arenas])
        opened = self._ranges(call.open)
        launch = _Launch(
            entry=library.entries[call.entry],
            anchor=_address(library.handle.convloom_sim_anchor),
            kernel=call.kernel.encode(),
            words=ctypes.addressof(words),
            blocks=call.blocks,
            threads=call.threads,
            shared=call.shared,
            cluster=call.cluster,
            variables=library.variables,
            variable_count=len(library.variables),
            closed=closed,
            closed_count=len(closed),
            open=opened,
            open_count=len(opened),
        )
        with _one_launch:
            self._runtime.convloom_sim_configure(*settings)
            failed = self._runtime.convloom_sim_launch(ctypes.byref(launch)) or self._wait()
            text: bytes = self._runtime.convloom_sim_error() if failed else b""
            return text.decode(errors="replace")

    def _wait(self) -> bool:
        """Wait for the launch; returns whether it failed. Ctrl-C ends it."""
        try:
            while (status := self._runtime.convloom_sim_wait(_PULSE)) < 0:
                pass  # Python's signal handlers run here
        except BaseException:
            self._runtime.convloom_sim_stop()
            while self._runtime.convloom_sim_wait(_PULSE) < 0:
                pass
            raise
        return bool(status)

    def _word(self, argument: Pointer | int | float, letter: str) -> int:
        """An argument as the 64-bit word of entry.h."""
        if isinstance(argument, Pointer):
            return self._arenas[argument.arena][1] + argument.offset
        if letter == "f":
            return int(struct.unpack("<I", struct.pack("<f", argument))[0])
        if letter == "d":
            return int(struct.unpack("<Q", struct.pack("<d", argument))[0])
        return int(argument) & (2**64 - 1)

    def _ranges(self, extents: Sequence[tuple[int, int, int]]) -> ctypes.Array[_Range]:
        return (_Range * len(extents))(
            *(
                _Range(self._arenas[number][1] + offset, nbytes)
                for number, offset, nbytes in extents
            )
        )


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


class RemoteMachine:
    """Runs kernels in a child process; a child that was ended is replaced at the next launch.

    Args:
        preload: libraries that the child's loader takes first.
        environment: variables that the child gets besides those of this process.
    """

    def __init__(self, runtime: str, preload: str, environment: dict[str, str]) -> None:
        self._runtime = runtime
        self._environment = {**os.environ, **environment, "LD_PRELOAD": preload}
        self._arenas: dict[int, tuple[int, int]] = {}
        self._libraries: dict[str, tuple[int, Variables]] = {}
        self._child: _Child | None = None
        self._lock = threading.RLock()
        atexit.register(self.close)

    def close(self) -> None:
        """End the child; the next launch starts another."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                child.close()

    def map_arena(self, number: int, descriptor: int, nbytes: int) -> None:
        """Make the file ``descriptor`` known as an arena; it must stay open until forgotten."""
        with self._lock:
            self._arenas[number] = descriptor, nbytes
            if self._child is not None:
                self._child.map_arena(number, descriptor, nbytes)

    def unmap_arena(self, number: int) -> None:
        """Forget an arena."""
        with self._lock:
            if self._arenas.pop(number, None) and self._child is not None:
                self._child.request("unmap", number)

    def load(self, library: str, count: int, variables: Variables) -> list[str]:
        """Load kernels; returns the letters of each one's parameters (entry.h)."""
        with self._lock:
            letters: list[str] = self._request("load", library, count, list(variables))
            self._libraries[library] = count, variables
            return letters

    def launch(self, call: Call, settings: Settings) -> str:
        """Run a kernel; returns what was wrong, empty if nothing was."""
        with self._lock:
            try:
                return str(self._request("launch", call, settings))
            except MachineError as error:
                return str(error)

    def _request(self, *message: object) -> Any:
        child = self._living()
        try:
            return child.request(*message)
        except (EOFError, ConnectionError):
            self._child = None
            raise MachineError(child.last_words()) from None
        except BaseException:
            # Ctrl-C: an answer would still come, and be taken for the next request's.
            self._child = None
            child.close()
            raise

    def _living(self) -> _Child:
        if self._child is None or not self._child.alive():
            self._child = _Child(self._runtime, self._environment)
            for number, (descriptor, nbytes) in self._arenas.items():
                self._child.map_arena(number, descriptor, nbytes)
            for library, (count, variables) in self._libraries.items():
                self._child.request("load", library, count, list(variables))
        return self._child


class _Child:
    """This file, run as a program, and the socket to it."""

    def __init__(self, runtime: str, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._owner = os.getpid()
        self._socket = ours
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the child lives)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, str(theirs.fileno()), runtime],
                stdin=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent to answer
            )
        self._connection = Connection(os.dup(ours.fileno()))
        self.request("ready")

    def alive(self) -> bool:
        """Whether it can still be asked; a fork of this process must start its own."""
        return self._owner == os.getpid() and self._process.poll() is None

    def request(self, *message: object, descriptor: int | None = None) -> Any:
        """Send a message and wait for the answer. Raises EOFError when the child has ended.

        JSON, not pickle: unpickling our classes would import the whole package in the child.
        """
        self._connection.send_bytes(json.dumps(message).encode())
        if descriptor is not None:
            socket.send_fds(self._socket, [b"\0"], [descriptor])
        return json.loads(self._connection.recv_bytes())

    def map_arena(self, number: int, descriptor: int, nbytes: int) -> None:
        """Hand over a file descriptor."""
        self.request("map", number, nbytes, descriptor=descriptor)

    def close(self) -> None:
        """End the child."""
        self._connection.close()
        self._socket.close()
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """What the ended child wrote to stderr, in one line, and where the whole text lies."""
        self._process.wait()
        self.close()
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        self._log.close()
        handle, path = tempfile.mkstemp(prefix="convloom-sim-", suffix=".log")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return f"{_summary(text, self._process.returncode)} (full report: {path})"


_OUTSIDE = "access outside the step's tensors or the block's shared memory"
#: AddressSanitizer's words for what happens here.
_PLAIN_WORDS = {
    "use-after-poison": _OUTSIDE,
    "heap-buffer-overflow": _OUTSIDE,
    "global-buffer-overflow": _OUTSIDE,
    "SEGV": "invalid memory access",
    "stack-overflow": "local variables overflow the simulator's stack",
}


def _summary(report: str, status: int) -> str:
    """The facts of a sanitizer's report: who, what, where."""
    who = re.search(r"^convloom-sim: (block \d+, thread \d+)$", report, re.MULTILINE)
    what = re.search(
        r"^.*?(?:ERROR: AddressSanitizer: |runtime error: )(.*)$", report, re.MULTILINE
    )
    at = re.search(r"^(\S+?:\d+):\d+: runtime error", report, re.MULTILINE) or re.search(
        r"^\s*#\d+ .* (\S+\.cuh?:\d+)", report, re.MULTILINE
    )
    text = re.split(" on (?:unknown )?address", what[1])[0] if what else ""
    text = re.sub(r" 0x[0-9a-f]+", "", text)
    text = _PLAIN_WORDS.get(text, text)
    return "".join(
        (
            f"{who[1]}: " if who else "",
            text.strip() or f"the process of the kernels ended with status {status}",
            f" at {at[1]}" if at else "",
        )
    )


def _serve(connection: Connection, channel: socket.socket, machine: Machine) -> None:
    """Answer requests until the other side is gone."""
    while True:
        try:
            command, *rest = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        answer: object = None
        if command == "map":
            _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
            machine.map_arena(rest[0], descriptors[0], rest[1])
            os.close(descriptors[0])
        elif command == "unmap":
            machine.unmap_arena(*rest)
        elif command == "load":
            answer = machine.load(*rest)
        elif command == "launch":
            call = Call(*rest[0])
            arguments = (Pointer(*a) if isinstance(a, list) else a for a in call.arguments)
            answer = machine.launch(call._replace(arguments=tuple(arguments)), Settings(*rest[1]))
        connection.send_bytes(json.dumps(answer).encode())


def main() -> None:
    """The child: ``machine.py DESCRIPTOR RUNTIME``."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    _serve(Connection(os.dup(channel.fileno())), channel, Machine(sys.argv[2]))


if __name__ == "__main__":
    main()

"""The thread pool, seen from Python, and how many threads a process should use.

The pool itself is kernels/cpu/runtime.cpp. One run at a time: runs from several Python threads
wait for each other. The GIL is free during a run.
"""

from __future__ import annotations

import ctypes
import math
import os
from functools import cache
from pathlib import Path

from convloom.backends.cpu.storage import allocate
from convloom.backends.locks import Lock
from convloom.ir import ConvloomError

_CGROUPS = Path("/sys/fs/cgroup")


def default_threads() -> int:
    """``$CONVLOOM_NUM_THREADS``, else the cores this process may use (affinity, cgroup quota).

    Raises:
        ConvloomError: the variable is not a positive integer.
    """
    if wished := os.environ.get("CONVLOOM_NUM_THREADS"):
        if not wished.strip().isdecimal() or int(wished) < 1:
            raise ConvloomError(
                f"CONVLOOM_NUM_THREADS must be a positive integer, it is {wished!r}"
            )
        return int(wished)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, math.ceil(min(usable or 1, _cgroup_quota())))


def _cgroup_quota() -> float:
    """Cores' worth of time that the control groups above this process allow; inf if unlimited."""
    quota = math.inf
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return quota
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        inner = root / place.lstrip("/")
        for folder in (inner, *inner.parents):
            quota = min(quota, _quota_of(folder))
            if folder == root:
                break
    return quota


def _quota_of(folder: Path) -> float:
    try:
        allowed, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            allowed = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    if allowed == "max" or int(allowed) <= 0:
        return math.inf
    return int(allowed) / int(period)


class Pool:
    """Runs phases on the runtime's threads; owns the threads' scratch memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.convloom_run
        self._run.restype = ctypes.c_long
        address, number = ctypes.c_void_p, ctypes.c_long
        self._run.argtypes = [address, number, number, address, number]
        self._scratch = allocate(0)
        self._lock = Lock()

    def run(self, phases: int, count: int, threads: int, scratch: int) -> None:
        """Run ``count`` phases at address ``phases``; a thread needs ``scratch`` bytes."""
        with self._lock:
            stride = -(-scratch // 64) * 64
            if self._scratch.nbytes < stride * threads:
                self._scratch = allocate(stride * threads)
            self._run(phases, count, threads, self._scratch.ctypes.data, stride)


_sharing = Lock()


def shared_pool(library: ctypes.CDLL) -> Pool:
    """The process's pool; all executables share its threads."""
    with _sharing:  # two pools of one library would run at the same time
        return _pool(library)


@cache
def _pool(library: ctypes.CDLL) -> Pool:
    return Pool(library)

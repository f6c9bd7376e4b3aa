"""Sound kernels with one barrier, wait or commit taken away: the race mode notices each."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from convloom.backends.cudasim.build import Workshop
from convloom.backends.cudasim.machine import Settings
from tests.backends.cudasim.bench import KERNELS, NEEDS_GCC, Bench, kernel, workshop_of

pytestmark = NEEDS_GCC
_SYNCHRONISES = re.compile(
    r"__syncthreads\(\);|__syncwarp\(\);|cp_async_wait<[01]>\(\);|cp_async_commit\(\);"
)
#: Lines whose loss does no harm: only order in time for the reader.
_IDLE = {
    ("pipeline", "cp_async_wait<0>();"): "nothing reads the last, empty copy",
    ("votes", "__syncwarp();"): "registers only",
}


def mutants() -> list[tuple[str, int, str]]:
    """(kernel, position, what stands there)."""
    found = []
    for name in ("block_sum", "pipeline", "atomics", "fragments"):
        text = (KERNELS / "sound" / f"{name}.cu").read_text()
        found += [(name, m.start(), m.group()) for m in _SYNCHRONISES.finditer(text)]
    return [(name, at, what) for name, at, what in found if (name, what) not in _IDLE]


@pytest.mark.parametrize("name,at,what", mutants())
def test_mutant_is_noticed(name: str, at: int, what: str, tmp_path: Path) -> None:
    text = (KERNELS / "sound" / f"{name}.cu").read_text()
    (tmp_path / "mutant").mkdir()
    mutant = text[:at] + ";" + text[at + len(what) :]
    mutant = mutant.replace(f"sound_{name}", f"mutant_{name}")
    (tmp_path / "mutant" / f"{name}.cu").write_text(mutant)
    own = workshop_of("race")
    bench = Bench("race")
    bench.workshop = Workshop(own.compiler, own.cache, own.mode, tmp_path)
    bench.workshop.__dict__["machine"] = own.machine  # the arena is mapped there
    assert run(bench, f"mutant/{name}"), f"{name} without {what} passes"
    assert not run(Bench("race"), f"sound/{name}")


def run(bench: Bench, source: str) -> str:
    """What three orders of threads find: a message, or that their results differ."""
    x = bench.array(np.random.default_rng(0).integers(0, 9, 1024).astype(np.float32))
    y = bench.array(np.zeros(1024, np.float32))
    name = source.split("/")[1]
    results = []
    for order in range(3):
        y[:] = 0
        settings = Settings(workers=1, order=order, seed=3, patience=5)
        if name == "pipeline":
            wanted, threads, arguments = kernel(source, THREADS=64), 64, (x, y, 4)
        elif name == "fragments":
            wanted, threads, arguments = kernel(source, KIND=3), 32, (x, x, y)  # type: ignore[assignment]
        else:
            wanted, threads, arguments = kernel(source), 128, (x, y, 1024)
        error = bench.launch(wanted, *arguments, threads=threads, shared=2048, settings=settings)
        if error:
            return error
        results.append(y.copy())
    same = all(np.array_equal(r, results[0], equal_nan=True) for r in results)
    return "" if same else "the results depend on the order"

"""Clusters: their blocks wait for one another, and read one another's shared memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

from convloom.backends.cudasim.machine import Settings
from tests.backends.cudasim.bench import NEEDS_GCC, Bench, kernel

pytestmark = NEEDS_GCC
MODES = ("plain", "asan", "race")
THREADS, BLOCKS = 64, 12


def launched(
    mode: str, case: int, cluster: int, settings: Settings, blocks: int = BLOCKS
) -> tuple[str, np.ndarray, np.ndarray]:
    """What was wrong, what was given, what came out."""
    bench = Bench(mode)
    x = bench.array(np.arange(BLOCKS * THREADS, dtype=np.float32))
    y = bench.array(np.zeros(BLOCKS * THREADS, np.float32))
    wanted = kernel("sound/cluster", CASE=case, CLUSTER=cluster)
    told = bench.launch(
        wanted, x, y, blocks=blocks, threads=THREADS, shared=4 * THREADS, settings=settings
    )
    return told, x.reshape(BLOCKS, THREADS), y.reshape(BLOCKS, THREADS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cluster", [1, 2, 3])
def test_blocks_see_each_others_shared_memory(mode: str, cluster: int) -> None:
    for order in range(3):
        for workers in (1, 4):
            told, x, y = launched(mode, 0, cluster, Settings(workers, order, seed=3))
            assert told == ""
            sums = np.roll(x, -1, axis=1).reshape(-1, cluster, THREADS).sum(axis=1)
            np.testing.assert_array_equal(y, 2 * np.repeat(sums, cluster, axis=0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("case", "text"),
    [
        (1, r"waits at .*cluster\.cu:14 for other blocks of its cluster, which do not come"),
        (2, r"cluster_read at .*cluster\.cu:17: a cluster of 2 has no block 2"),
        (3, r"cluster_read at .*cluster\.cu:17: address outside"),
    ],
)
def test_faults_are_named(mode: str, case: int, text: str) -> None:
    told, _, _ = launched(mode, case, 2, Settings(patience=0.3))
    assert re.search(text, told), told


def test_grids_have_whole_clusters() -> None:
    told, _, _ = launched("plain", 0, 2, Settings(), blocks=11)
    assert "a grid has whole clusters" in told

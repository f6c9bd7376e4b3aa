"""benchmarks/onchip_step.py, on the simulator: what differs from the plain kernels is told."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cudasim.gpu import SimulatedGpu

FILE = Path(__file__).resolve().parents[2] / "benchmarks/onchip_step.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("onchip_step", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onchip_step"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")
def test_variants_are_compared(tool: ModuleType) -> None:
    setting = tool.Setting("cuda-sim", 2, 1)
    rows = tool.compared("lenet", "bf16", 2, ["plain", "split2", "plain"], setting)
    assert [(row["variant"], row["blocks"]) for row in rows] == [("plain", 2), ("split2", 4)]
    assert all(len(row["losses"]) == 2 and "error" not in row for row in rows)
    assert len(tool.table(rows).splitlines()) == 3


def test_rows_that_disagree_say_so(tool: ModuleType) -> None:
    rows = [{"variant": "a", "losses": [2.0]}, {"variant": "b", "losses": [2.5]}]
    assert tool.agreeing(rows)[1]["error"] == "its losses are not those of a"


def test_layers_are_compared_in_fp32_alone(tool: ModuleType) -> None:
    assert "layers" in tool._variants("all", "fp32")
    assert "layers" not in tool._variants("all", "bf16")
    with pytest.raises(SystemExit, match="no variant 'fast'"):
        tool._variants("fast", "fp32")


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")
def test_what_is_compiled_ahead_is_what_runs(tool: ModuleType, monkeypatch: Any) -> None:
    """The kernels that a resident run on the simulator loads, but for its own gather and record."""
    monkeypatch.setattr(tool, "GPU", tool.Setting("cuda-sim"))
    ahead = tool.kernels_of("lenet", "bf16", "cluster2", 2)
    loaded: set[object] = set()
    seen = SimulatedGpu.load

    def load(self: SimulatedGpu, wanted: Iterable[Specialisation]) -> None:
        kernels = list(wanted)
        loaded.update(kernels)
        seen(self, kernels)

    monkeypatch.setattr(SimulatedGpu, "load", load)
    tool.compared("lenet", "bf16", 2, ["cluster2"], tool.Setting("cuda-sim", 1, 1))
    assert {"onchip/pack", "onchip/cluster_step", "onchip/reduce"} == {k.source for k in ahead}
    assert {kernel for kernel in ahead if kernel.source != "onchip/pack"} <= loaded

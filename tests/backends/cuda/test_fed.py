"""Launches of a step that makes its own batch: what they are given in place of gathered tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.fed import fed_calls
from convloom.backends.cuda.launch import CudaLaunch, Fed, Phase, Specialisation, Tensor, Workspace
from convloom.backends.cuda.resident import Crops, kernels
from convloom.ir import Plan
from tests.backends.cuda.networks import evaluate_plan

KERNEL = Specialisation("onchip/step", (("CONVS", 2), ("FED", 0)))
PHASE = Phase(
    KERNEL, (Fed("images"), Tensor("input", 8), Workspace(64), Fed("clock"), 7, 0.5), 3, 128, 256
)
ADDRESSES = {"images": 1000, "clock": 2000}


@dataclass(frozen=True)
class Placed:
    """Buffers lie at the length of their name."""

    plan: Plan

    def place(self, buffer: str) -> int:
        return len(buffer)


def one_step(backend: CudaBackend, *fed: Phase) -> Plan:
    plan = evaluate_plan(backend, 4)
    step = plan.steps[0]
    launch = CudaLaunch((), fed=fed)
    step = replace(step, selection=replace(step.selection, launch=launch), workspace="scratch")
    return replace(plan, steps=(step,))


def test_arguments_and_constants_are_filled_in(backend: CudaBackend) -> None:
    gather, _ = kernels((2, 9, 8), 9, Crops(4, reflect=True))
    (call,) = fed_calls(Placed(one_step(backend, PHASE)), gather, ADDRESSES)
    assert call.words == (1000, 5 + 8, 7 + 64, 2000, 7, 0.5)
    assert (call.blocks, call.threads, call.shared) == (3, 128, 256)
    constants = dict(call.kernel.constants)
    assert call.kernel.constants == tuple(sorted(constants.items()))
    assert {"CONVS": 2, "FED": 1, "FED_AUGMENT": 1, "FED_PADDING": 4}.items() <= constants.items()
    assert {"FED_REFLECT": 1, "FED_RATES": 9, "FED_C": 2, "FED_FLOATS": 0}.items() <= (
        constants.items()
    )


def test_other_plans_are_gathered_for(backend: CudaBackend) -> None:
    gather, _ = kernels((2, 9, 8), 9, None)
    assert fed_calls(Placed(one_step(backend)), gather, ADDRESSES) == []
    several = one_step(backend, PHASE)
    several = replace(several, steps=2 * several.steps)
    assert fed_calls(Placed(several), gather, ADDRESSES) == []


def test_a_plain_run_cannot_be_fed(backend: CudaBackend) -> None:
    plan = one_step(backend)
    step = plan.steps[0]
    kernel = Specialisation("fill_zero/naive")
    wrong = CudaLaunch((Phase(kernel, (Fed("images"), 1), 1, 32),))
    step = replace(step, selection=replace(step.selection, launch=wrong), workspace=None)
    executable = backend.executable(replace(plan, steps=(step,)), backend.storage(plan))
    with pytest.raises(ValueError, match="needs a data set for images"):
        executable.run()

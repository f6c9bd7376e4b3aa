"""What the CUDA selectors promise, whatever the kernels compute."""

from __future__ import annotations

import pytest

from convloom import nn
from convloom.backends.base import get_backend
from convloom.backends.cuda.launch import CudaLaunch, Phase, Specialisation, launch_of
from convloom.backends.cuda.selectors import FAMILIES, RUNGS
from convloom.backends.cuda.selectors.config import VARIANTS, using
from convloom.compiler import compile_graph
from convloom.ir import NHWC, Node, Plan, TensorSpec
from convloom.nn.models import lenet, vgg_small
from convloom.ops import ReLU, Unflatten
from convloom.optim import SGD, AdamW
from convloom.training.graphs import INDEX, training_graph

NETWORKS = {"lenet": (lenet, (1, 28, 28)), "vgg-small": (vgg_small, (3, 32, 32))}


def training_plan(name: str, samples: int, kernels: str = "auto", clip: bool = False) -> Plan:
    make, shape = NETWORKS[name]
    optimizer = AdamW(lr=0.1) if clip else SGD(lr=0.1, momentum=0.9)
    traced = make().trace(shape, samples)
    graph = training_graph(traced, nn.CrossEntropyLoss(), INDEX, optimizer, clip)
    return compile_graph(graph, get_backend("cuda-sim"), kernels)


def phases(plan: Plan) -> list[Phase]:
    launches = [step.selection.launch for step in plan.steps]
    assert all(isinstance(launch, CudaLaunch) for launch in launches)
    return [phase for launch in launches for phase in launch.phases]


def kernels_of(plan: Plan) -> set[Specialisation]:
    return {kernel for step in plan.steps for kernel in launch_of(step).kernels}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rung", (*RUNGS, "auto"))
def test_another_batch_size_compiles_nothing_new(name: str, rung: str) -> None:
    # On chip, clusters of blocks share the images of a small batch.
    full = kernels_of(training_plan(name, 512, rung)) | kernels_of(training_plan(name, 2, rung))
    for samples in (1, 64, 500):
        assert kernels_of(training_plan(name, samples, rung)) <= full


@pytest.mark.parametrize(
    ("variant", "samples", "forward", "dgrad"),
    [
        ("plain", 64, "direct", "sparse"),
        ("plain", 4096, "winograd", "winograd"),
        ("unwinograd", 4096, "sliding", "sliding"),
    ],
)
def test_where_a_batch_has_blocks_enough(
    variant: str, samples: int, forward: str, dgrad: str
) -> None:
    """Convolutions are made by minimal filtering, or slide down whole images."""
    with using(VARIANTS[variant]):
        plan = training_plan("lenet", samples, "sparse")
        sources = {phase.kernel.source for phase in phases(plan)}
        assert {f"conv2d_fprop/{forward}", f"conv2d_dgrad/{dgrad}"} <= sources
        assert len([one for one in sources if one.startswith("conv2d_dgrad")]) == 1


def test_filter_gradients_are_filtered_where_windows_are_plenty() -> None:
    for samples, wgrad in ((64, "sparse"), (4096, "winograd")):
        plan = training_plan("lenet", samples, "sparse")
        sources = [phase.kernel.source for phase in phases(plan)]
        found = [one for one in sources if one.startswith("conv2d_wgrad")]
        assert found == [f"conv2d_wgrad/{wgrad}", "conv2d_wgrad/warp"]


@pytest.mark.parametrize("rung", RUNGS)
def test_launches_fit_a_gpu(rung: str) -> None:
    for phase in phases(training_plan("vgg-small", 70_000, rung, clip=True)):
        assert 1 <= phase.blocks < 2**31
        assert phase.threads % 32 == 0
        assert 32 <= phase.threads <= 1024
        assert phase.shared <= 64 * 1024  # what Turing grants a block that asks


def test_rungs_are_caps() -> None:
    for at, rung in enumerate(RUNGS):
        taken = {step.selection.rung for step in training_plan("lenet", 64, rung).steps}
        assert taken <= set(RUNGS[: at + 1])
        assert rung in taken


def test_naive_runs_every_plain_op_and_no_other() -> None:
    plan = training_plan("lenet", 64, "naive")
    assert {step.selection.rung for step in plan.steps} == {"naive"}
    assert not any(step.node.op.name.startswith(("Fused", "Pooled")) for step in plan.steps)


def test_an_op_belongs_to_one_family() -> None:
    ops = [op for family in FAMILIES.values() for op in family]
    assert len(ops) == len(set(ops))


def test_what_no_kernel_serves() -> None:
    backend = get_backend("cuda-sim")
    wide = TensorSpec((2, 3), "float64")
    node = Node(ReLU(), ("x",), ("y",), "test")
    assert backend.select(node, {"x": wide, "y": wide}, "auto") is None
    node = Node(Unflatten((5, 3, 4)), ("x",), ("y",), "test")
    other = TensorSpec((2, 60)).with_layout(NHWC)
    image = TensorSpec((2, 5, 3, 4)).with_layout(NHWC)
    assert backend.select(node, {"x": other, "y": image}, "auto") is None
    with pytest.raises(ValueError, match="tiled"):
        backend.select(node, {}, "reference")

"""Which CUDA kernel runs an op: one module an op family, each with a table ``LADDER``.

A ladder maps (op name, rung) to a function ``(node, specs) -> Selection | None``, which looks at
the op and the specs only. ``select_kernel`` walks the rungs from the highest allowed one down.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache

from convloom.backends.cuda.device import HOPPER, Chip
from convloom.backends.selecting import OP_FAMILIES
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops import Chain
from convloom.ops.precision import FP32

#: The ladder, lowest first: a thread an output; neighbouring ops in one kernel; tiles in shared
#: memory and registers; sums by shuffles; asynchronous copies; inputs that slide through registers;
#: gradients that are zero left out; a whole network in one kernel.
RUNGS = ("naive", "fused", "tiled", "warp", "async", "direct", "sparse", "onchip")

#: What takes a node and the specs of its tensors; on rung ``onchip`` the chip as well.
Build = Callable[..., Selection | None]

#: {module of this package: the ops it serves}.
FAMILIES = {
    **OP_FAMILIES,
    "chain": ("ChainForward", "ChainEvaluate", "ChainGradient", "ChainUpdate"),
    "reduction": ("BiasGrad", "GradientNorm"),
}


def select_kernel(
    node: Node, specs: Mapping[str, TensorSpec], kernels: str, chip: Chip = HOPPER
) -> Selection | None:
    """The kernel of the highest rung, up to ``kernels``, that serves ``node``; None without one.

    ``chip`` is what whole networks ask about the GPU.

    Raises ValueError if ``kernels`` is neither ``auto`` nor a rung.
    """
    if kernels != "auto" and kernels not in RUNGS:
        raise ValueError(f"unknown kernels {kernels!r}; known are auto, {', '.join(RUNGS)}")
    highest = len(RUNGS) - 1 if kernels == "auto" else RUNGS.index(kernels)
    ladder = _ladder(node.op.name)
    for rung in reversed(RUNGS[: highest + 1]):
        build = ladder.get(rung)
        asked = (chip,) if rung == "onchip" else ()
        selection = build(node, specs, *asked) if build else None
        if selection is not None:
            left = kernels == "auto" and _left_to_layers(node, selection)
            return None if left else selection
    return None


def refusal(node: Node, specs: Mapping[str, TensorSpec], kernels: str, chip: Chip = HOPPER) -> str:
    """Why a chain of layers does not run on chip, in a clause; empty for any other op."""
    if not isinstance(node.op, Chain):
        return ""
    why = str(importlib.import_module(f"{__name__}.chain").refusal(node, specs, chip))
    if why or select_kernel(node, specs, kernels, chip) is not None:
        return why
    return 'its layers are faster in fp32 (kernels "onchip" takes it all the same)'


def _left_to_layers(node: Node, selection: Selection) -> bool:
    """Whether a chain is one that ``auto`` does not take, since its layers are faster alone.

    So it is in fp32, unless clusters of blocks share the images, as they do in small batches. lenet
    on an H200, microseconds a step: of 64 images 54 by clusters, 82 by a block an image, 68 by
    layers; of 4096 images 2382 by a block an image, 2046 by layers. In bf16 and tf32 the chain has
    tensor cores, the layers have not.
    """
    if not isinstance(node.op, Chain) or node.op.precision != FP32:
        return False
    assert selection.segment is not None
    return selection.segment.cluster == 1


@cache
def _ladder(op: str) -> dict[str, Build]:
    """{rung: what builds it} of an op."""
    for family, ops in FAMILIES.items():
        if op in ops:
            table: Mapping[tuple[str, str], Build]
            table = importlib.import_module(f"{__name__}.{family}").LADDER
            return {rung: build for (name, rung), build in table.items() if name == op}
    return {}

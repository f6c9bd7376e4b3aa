"""Which CUDA kernel runs an op: one module an op family, each with a table ``LADDER``.

A ladder maps (op name, rung) to a function ``(node, specs) -> Selection | None``, which looks at
the op and the specs only. ``select_kernel`` walks the rungs from the highest allowed one down.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache

from convloom.backends.cuda.device import LARGEST_SHARED
from convloom.backends.selecting import OP_FAMILIES
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops import Chain
from convloom.ops.precision import FP32

#: The ladder, lowest first: a thread an output; neighbouring ops in one kernel; tiles in shared
#: memory and registers; sums by shuffles; asynchronous copies; inputs that slide through registers;
#: gradients that are zero left out; a whole network in one kernel.
RUNGS = ("naive", "fused", "tiled", "warp", "async", "direct", "sparse", "onchip")

#: What takes a node and the specs of its tensors; on rung ``onchip`` a block's memory as well.
Build = Callable[..., Selection | None]

#: {module of this package: the ops it serves}.
FAMILIES = {
    **OP_FAMILIES,
    "chain": ("ChainForward", "ChainEvaluate", "ChainGradient", "ChainUpdate"),
    "reduction": ("BiasGrad", "GradientNorm"),
}


def select_kernel(
    node: Node, specs: Mapping[str, TensorSpec], kernels: str, shared: int = LARGEST_SHARED
) -> Selection | None:
    """The kernel of the highest rung, up to ``kernels``, that serves ``node``; None without one.

    ``shared`` is how many bytes of shared memory a block may have, which whole networks ask.

    Raises ValueError if ``kernels`` is neither ``auto`` nor a rung.
    """
    if kernels != "auto" and kernels not in RUNGS:
        raise ValueError(f"unknown kernels {kernels!r}; known are auto, {', '.join(RUNGS)}")
    if _left_to_layers(node, kernels):
        return None
    highest = len(RUNGS) - 1 if kernels == "auto" else RUNGS.index(kernels)
    ladder = _ladder(node.op.name)
    for rung in reversed(RUNGS[: highest + 1]):
        build = ladder.get(rung)
        limit = (shared,) if rung == "onchip" else ()
        selection = build(node, specs, *limit) if build else None
        if selection is not None:
            return selection
    return None


def refusal(
    node: Node, specs: Mapping[str, TensorSpec], kernels: str, shared: int = LARGEST_SHARED
) -> str:
    """Why a chain of layers does not run on chip, in a clause; empty for any other op."""
    if not isinstance(node.op, Chain):
        return ""
    if _left_to_layers(node, kernels):
        return 'its layers are faster in fp32 (kernels "onchip" takes it all the same)'
    return str(importlib.import_module(f"{__name__}.chain").refusal(node, specs, shared))


def _left_to_layers(node: Node, kernels: str) -> bool:
    """Whether a chain is one that ``auto`` does not take, since its layers are faster alone.

    lenet on an H200, in fp32: 0.78 and 1.6 million images/s on chip at batches of 64 and 4096, 0.95
    and 2.0 million layer by layer. In bf16 the chain has tensor cores, the layers have not.
    """
    return kernels == "auto" and isinstance(node.op, Chain) and node.op.precision == FP32


@cache
def _ladder(op: str) -> dict[str, Build]:
    """{rung: what builds it} of an op."""
    for family, ops in FAMILIES.items():
        if op in ops:
            table: Mapping[tuple[str, str], Build]
            table = importlib.import_module(f"{__name__}.{family}").LADDER
            return {rung: build for (name, rung), build in table.items() if name == op}
    return {}

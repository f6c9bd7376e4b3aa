"""Kernels for ops that treat every element alike: ReLU, its gradient, Add."""

from __future__ import annotations

from collections.abc import Mapping

from convloom.backends.cpu.launch import Argument, CpuLaunch, Phase, Specialisation, Tensor
from convloom.ir import Node, Selection, TensorSpec

#: Elements an item takes: small enough to spread a small map over the cores.
CHUNK = 16384
_SOURCES = {"ReLU": "relu", "ReLUGrad": "relu_grad", "Add": "add"}


def select(node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
    """Serves float32 tensors that all have one layout."""
    tensors = [specs[name] for name in (*node.inputs, *node.outputs)]
    first = tensors[0]
    if any(t.dtype != "float32" or t.layout != first.layout for t in tensors):
        return None
    source = _SOURCES[node.op.name]
    arguments: tuple[Argument, ...] = (
        *(Tensor(name) for name in (*node.inputs, *node.outputs)),
        first.size,
    )
    kernel = Specialisation(source, (("CHUNK", CHUNK),))
    phase = Phase(kernel, arguments, items=-(-first.size // CHUNK))
    return Selection("dense", source, CpuLaunch((phase,)))

"""Kernels for the fully connected layer and its gradients, fused or not.

A weight behind a Flatten is stored in the order of the flattened image; input and weight must
then be in the same order, and the kernels see two plain matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convloom.backends.cpu.launch import Argument, CpuLaunch, Phase, Specialisation, Tensor
from convloom.backends.selecting import activation_constants, mask_constants
from convloom.ir import ROW_MAJOR, Node, Selection, TensorSpec

_Specs = Mapping[str, TensorSpec]


def select(node: Node, specs: _Specs, kernels: str) -> Selection | None:
    """Serves float32 of any size but empty weights."""
    tensors = [specs[name] for name in (*node.inputs, *node.outputs)]
    if any(t.dtype != "float32" for t in tensors):
        return None
    op = node.op.name
    build, (wide, weight) = _BUILDERS[op]
    names = (*node.inputs, *node.outputs)
    same_order = specs[names[wide]].layout == specs[names[weight]].layout
    if not same_order or specs[names[weight]].size == 0:
        return None
    flat = set(names) - {names[wide], names[weight]}
    if _masked(node):
        same_order = specs[node.inputs[2]].layout == specs[names[wide]].layout
        flat -= {node.inputs[2]}
    if not same_order or any(specs[name].layout != ROW_MAJOR for name in flat):
        return None
    phase = build(node, specs)
    return Selection("dense", phase.kernel.source, CpuLaunch((phase,)))


def _forward(node: Node, specs: _Specs) -> Phase:
    (n, inputs), (outputs, _) = specs[node.inputs[0]].shape, specs[node.inputs[1]].shape
    # A tile of 4 outputs sums its lanes at the least cost, one of 5 loads less for each product.
    tile = _tile(outputs, (5, 4, 6, 4) if inputs >= 2048 else (4, 5, 6, 4))
    # Few outputs: split the samples. Many: an item keeps its weights and walks all samples.
    block, samples = (_round_up(outputs, tile), 16) if outputs <= 256 else (8 * tile, 64)
    kernel = Specialisation(
        "linear_fprop",
        (
            ("I", inputs),
            ("O", outputs),
            ("TO", tile),
            ("OB", block),
            ("NB", samples),
            ("BIAS", int(len(node.inputs) > 2)),
            *activation_constants(node.op).items(),
        ),
    )
    items = -(-outputs // block) * -(-n // samples)
    return Phase(kernel, _arguments(node, n), items)


def _dgrad(node: Node, specs: _Specs) -> Phase:
    n = specs[node.inputs[0]].shape[0]
    outputs, inputs = specs[node.inputs[1]].shape
    width, rows = _panel(inputs), min(outputs, 128)
    constants = (
        ("I", inputs),
        ("O", outputs),
        ("IW", width),
        ("OC", rows),
        *mask_constants(node.op).items(),
    )
    kernel = Specialisation("linear_dgrad", constants)
    return Phase(kernel, _arguments(node, n), -(-inputs // width), scratch=4 * rows * width)


def _wgrad(node: Node, specs: _Specs) -> Phase:
    (n, inputs), (_, outputs) = specs[node.inputs[0]].shape, specs[node.inputs[1]].shape
    tile, width, rows = _tile(outputs, (10, 12, 8)), _panel(inputs), 128
    block = _round_up(min(outputs, 64), tile)
    kernel = Specialisation(
        "linear_wgrad",
        (
            ("I", inputs),
            ("O", outputs),
            ("TO", tile),
            ("OB", block),
            ("IW", width),
            ("NC", rows),
            ("BIAS", int(len(node.outputs) > 1)),
        ),
    )
    items = -(-inputs // width) * -(-outputs // block)
    return Phase(kernel, _arguments(node, n), items, scratch=4 * rows * width)


#: {op: (builder, (index of the activation as wide as the weight, index of the weight))}, where
#: indices count inputs, then outputs.
_BUILDERS: dict[str, tuple[Callable[[Node, _Specs], Phase], tuple[int, int]]] = {
    "Linear": (_forward, (0, 1)),
    "FusedLinear": (_forward, (0, 1)),
    "LinearDgrad": (_dgrad, (-1, 1)),
    "FusedLinearDgrad": (_dgrad, (-1, 1)),
    "LinearWgrad": (_wgrad, (0, 2)),
    "FusedLinearWgrad": (_wgrad, (0, 2)),
}


def _masked(node: Node) -> bool:
    return getattr(node.op, "mask", "none") != "none"


def _arguments(node: Node, samples: int) -> tuple[Argument, ...]:
    return (*(Tensor(name) for name in (*node.inputs, *node.outputs)), samples)


def _tile(outputs: int, sizes: tuple[int, ...]) -> int:
    """The register tile that wastes nothing if there is one, else the last of ``sizes``."""
    fitting = [size for size in sizes if outputs % size == 0]
    return min(outputs, fitting[0] if fitting else sizes[-1])


def _panel(inputs: int) -> int:
    """Inputs of an item: wide where the layer is, so that rows are read by the kilobyte."""
    return 256 if inputs >= 2048 else 64


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step

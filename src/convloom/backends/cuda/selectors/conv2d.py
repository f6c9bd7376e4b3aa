"""Kernels of convolution and its gradients, fused or not.

The constants of a kernel are the sizes of device/conv.cuh; the batch size is an argument.
"""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    channels_last,
    dtypes,
    image_order,
    pairs,
    tensors,
)
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops.conv2d import ConvGeometry


def _forward(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 images, row-major or NHWC, and filters, KCRS or KRSC."""
    if not _served(node, specs):
        return None
    x, w, y = (specs[name] for name in (*node.inputs[:2], *node.outputs[:1]))
    constants = sizes(cast(ConvGeometry, node.op), x, w, y)
    build = Builder(specs)
    constants["BIAS"] = int(len(node.inputs) > 2)
    build.each("conv2d_fprop/naive", constants, _forward_arguments(node, x.shape[0]), y.size)
    return build.selection("naive", "conv2d_fprop")


def _dgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    dy, w, dx = (specs[name] for name in (*node.inputs[:2], *node.outputs))
    constants = sizes(cast(ConvGeometry, node.op), dx, w, dy)
    build = Builder(specs)
    build.each("conv2d_dgrad/naive", constants, (*tensors(node), dx.shape[0]), dx.size)
    return build.selection("naive", "conv2d_dgrad")


def _wgrad(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    x, dy, dw = (specs[name] for name in (*node.inputs, *node.outputs[:1]))
    constants = sizes(cast(ConvGeometry, node.op), x, dw, dy)
    build = Builder(specs)
    arguments: tuple[Argument, ...] = (*tensors(node), x.shape[0])
    build.each("conv2d_wgrad/naive", constants, arguments, dw.size, threads=64)
    return build.selection("naive", "conv2d_wgrad")


def sizes(conv: ConvGeometry, x: TensorSpec, w: TensorSpec, y: TensorSpec) -> dict[str, int]:
    """The constants of device/conv.cuh for a convolution of x with w.

    ``y`` gives only its memory order: its size is that of the convolution's output.
    """
    out = conv.window((w.shape[2], w.shape[3])).output((x.shape[2], x.shape[3]))
    return {
        **{"C": w.shape[1], "G": conv.groups, "K": w.shape[0], "R": w.shape[2], "S": w.shape[3]},
        **{"H": x.shape[2], "W": x.shape[3], "OH": out[0], "OW": out[1]},
        **pairs(U=conv.stride, D=conv.dilation, P=conv.padding),
        **{"XROW": _row(x), "YROW": _row(y), "WROW": _row(w)},
    }


def _row(spec: TensorSpec) -> int:
    return int(not channels_last(spec))


def _forward_arguments(node: Node, n: int) -> tuple[Argument, ...]:
    bias = Tensor(node.inputs[2]) if len(node.inputs) > 2 else ABSENT
    outputs = tuple(Tensor(name) for name in node.outputs)
    return (Tensor(node.inputs[0]), Tensor(node.inputs[1]), bias, *outputs, n)


def _served(node: Node, specs: Specs) -> bool:
    names = (*node.inputs, *node.outputs)
    return all(image_order(specs[name]) for name in names) and set(dtypes(node, specs)) <= {
        "float32",
        "uint8",
    }


LADDER = {
    ("Conv2d", "naive"): _forward,
    ("Conv2dDgrad", "naive"): _dgrad,
    ("Conv2dWgrad", "naive"): _wgrad,
}

"""Kernels of locally connected layers and their gradients."""

from __future__ import annotations

from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, ceil_div, dtypes, same_order
from convloom.backends.cpu.selectors.conv2d import packing
from convloom.backends.cpu.selectors.conv2d_problem import Problem, pixel_tile
from convloom.ir import NHWC, Node, Selection, TensorSpec
from convloom.ops.conv2d import ConvGeometry

#: Images that the input gradient takes together, and bytes that the filter gradient stages.
_TOGETHER, _STAGED = 4, 256 * 1024


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 images, NHWC or brought there, and KRSC filters."""
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    if not all(same_order(specs[name].layout, NHWC) for name in node.outputs):
        return None
    build = Builder(specs)
    places = [build.input(name, NHWC) for name in node.inputs]
    inputs = tuple(place for place in places if place is not None)
    if len(inputs) < len(places):
        return None
    output = Tensor(node.outputs[0])
    if specs[node.inputs[0]].shape[0] == 0:
        build.add("fill_zero", {}, (output, specs[node.outputs[0]].size), items=1)
        return build.selection("fill_zero")
    _BUILD[node.op.name](build, node, inputs, output)
    return build.selection(build.phases[-1].kernel.source)


def _forward(build: Builder, node: Node, inputs: tuple[Argument, ...], y: Tensor) -> None:
    op = cast(ConvGeometry, node.op)
    x, w, out = (build.specs[name] for name in (*node.inputs, *node.outputs))
    n, channels, height, width = x.shape
    source = inputs[0]
    if op.padding != (0, 0):
        (top, left) = op.padding
        height, width = height + 2 * top, width + 2 * left
        source = build.workspace(4 * n * channels * height * width)
        constants = {"C": channels, "PH": top, "PW": left}
        build.add("stage_images", constants, (inputs[0], source, *x.shape[2:]), n)
    pixels, groups = out.shape[2] * out.shape[3], op.groups
    many = ConvGeometry(groups=pixels * groups)
    _, c, r, s = w.shape
    problem = Problem(n, c, height, width, w.shape[0], r, s, many, NHWC, NHWC, NHWC)
    tile = pixel_tile(1, 10_000, out.shape[1] // groups, problem.depth, False, False)
    packed = build.workspace(0)
    phase, nbytes = packing(problem, tile.block, flip=False, w=inputs[1], to=packed)
    build.workspace(nbytes)
    build.phases.append(phase)
    constants = _constants(op, w, out) | {"KB": tile.block, "PC": tile.cols}
    constants |= {"IMAGE": height * width * channels, "ROW": width * channels}
    build.add("local_fprop", constants, (source, packed, y, n, out.shape[3], pixels), pixels)


def _dgrad(build: Builder, node: Node, inputs: tuple[Argument, ...], dx: Tensor) -> None:
    dy, w = (build.specs[name] for name in node.inputs)
    n, _, height, width = build.specs[dx.name].shape
    constants = _constants(cast(ConvGeometry, node.op), w, dy)
    arguments = (*inputs, dx, n, height, width, *dy.shape[2:])
    build.add("local_dgrad", constants, arguments, ceil_div(n, _TOGETHER))


def _wgrad(build: Builder, node: Node, inputs: tuple[Argument, ...], dw: Tensor) -> None:
    x, dy = (build.specs[name] for name in node.inputs)
    filters = build.specs[dw.name]
    constants = _constants(cast(ConvGeometry, node.op), filters, dy)
    staged = 4 * (x.shape[1] * filters.shape[2] * filters.shape[3] + dy.shape[1])
    chunk = max(8, _STAGED // staged)
    arguments = (*inputs, dw, x.shape[0], *x.shape[2:], *dy.shape[2:])
    items = dy.shape[2] * dy.shape[3]
    build.add("local_wgrad", constants | {"CHUNK": chunk}, arguments, items, chunk * staged)


def _constants(op: ConvGeometry, w: TensorSpec, y: TensorSpec) -> dict[str, int]:
    """Channels of a group, groups, filters of a pixel, and the geometry."""
    (uh, uw), (dh, dw), (ph, pw) = op.stride, op.dilation, op.padding
    return {
        **{"C": w.shape[1], "G": op.groups, "K": y.shape[1], "R": w.shape[2], "S": w.shape[3]},
        **{"UH": uh, "UW": uw, "DH": dh, "DW": dw, "PH": ph, "PW": pw},
    }


_BUILD = {"Local2d": _forward, "Local2dDgrad": _dgrad, "Local2dWgrad": _wgrad}

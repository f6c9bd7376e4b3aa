"""Kernels of maps that act on rows and columns apart: padding, resizing, sampling."""

from __future__ import annotations

from collections.abc import Callable

from convloom.backends.cuda.launch import Argument
from convloom.backends.cuda.selectors.common import (
    THREADS,
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
    tensors,
)
from convloom.backends.mapping import map_constants, map_numbers
from convloom.ir import Node, Selection

#: Elements of an image that 32 bits can count.
_INDEXED = 2**31


def _launch(rung: str) -> Callable[[Node, Specs], Selection | None]:
    """Serves float32 images, row-major or NHWC; ``tiled`` NHWC with channels in fours."""

    def build_of(node: Node, specs: Specs) -> Selection | None:
        x, y = specs[node.inputs[0]], specs[node.outputs[0]]
        if set(dtypes(node, specs)) != {"float32"} or not (image_order(x) and image_order(y)):
            return None
        back = node.op.name.endswith("Grad")
        inner, outer = (y, x) if back else (x, y)
        constants = {
            **{"C": x.shape[1], "H": inner.shape[2], "W": inner.shape[3]},
            **{"OH": outer.shape[2], "OW": outer.shape[3]},
            **{"XROW": int(not channels_last(inner)), "YROW": int(not channels_last(outer))},
            **map_constants(node.op),
        }
        folder, build = "spatial_map_grad" if back else "spatial_map", Builder(specs)
        numbers: tuple[Argument, ...] = map_numbers(node.op)[int(back) :]
        if rung == "naive":
            samples: Argument = y.shape[0]
            arguments = (*tensors(node), samples, *numbers)
            build.each(f"{folder}/naive", constants, arguments, y.size)
            return build.selection(rung, folder)
        elements = y.shape[1] * y.shape[2] * y.shape[3]
        fours = y.shape[1] % 4 == 0 and channels_last(x) and channels_last(y)
        if not fours or elements >= _INDEXED:
            return None
        blocks = y.shape[0] * ceil_div(elements // 4, THREADS)
        build.add(f"{folder}/tiled", constants, (*tensors(node), *numbers), blocks)
        return build.selection(rung, folder)

    return build_of


_OPS = (
    "Pad2d",
    "Pad2dGrad",
    "Resize2d",
    "Resize2dGrad",
    "Nailbed",
    "NailbedGrad",
    "Mirror",
    "Blur",
)
LADDER = {(op, rung): _launch(rung) for op in _OPS for rung in ("naive", "tiled")}

"""Feature maps: what a layer makes of images as the network predicts, fused layers included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from convloom.backends import resolve_device
from convloom.inspection import mosaic
from convloom.ir import ConvloomError
from convloom.training.graphs import prediction_graph
from convloom.training.layers import LayerError, tensor_of
from convloom.training.prediction import normalised
from convloom.training.step import run_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convloom.nn import Module

_MOST = 256
#: What is brought to one range of colours together: all maps, or each.
SCALES = ("all", "map")


class MapError(ConvloomError, ValueError):
    """No such layer or maps; the message names what there is."""


def feature_maps(
    model: Module, images: np.ndarray, layer: str, *, device: str = "auto"
) -> np.ndarray:
    """What a layer makes of images, (N, C, H, W) or (N, F), as the network predicts.

    Kernels are those of a prediction: what fusion never stores is made again beside it, to the
    bit (compiler/watch.py).

    Args:
        images: (N, C, H, W); uint8 is normalised as in training, floats are taken as given.
        layer: its name, for the last tensor that it makes; or a tensor's, ``relu.out#2``.
        device: as ``Module.predict`` has it.

    Raises:
        MapError: no such layer, or one that runs at several places; names what there is.
        ShapeError: images of another shape than the network takes.
    """
    x = normalised(model, np.asarray(images))
    graph = prediction_graph(model.initialize().trace(tuple(x.shape[1:]), len(x)))
    try:
        tensor = tensor_of(graph, layer)
    except LayerError as error:
        raise MapError(str(error)) from None
    values = {**model.state_dict(), "input": x}
    (maps,) = run_once(graph, values, [tensor], resolve_device(device), watch=[tensor])
    return maps


def plot_maps(maps: np.ndarray, title: str = "", *, scale: str = "all") -> Figure:
    """A figure of an image's maps, or of gradients, in a grid.

    Numbers of one sign are shown in grey; where there are both, red is above zero and blue below.
    NaN and infinities are magenta.

    Args:
        maps: (C, H, W); or (F,), each number as a square.
        scale: ``all`` gives all maps one range of colours, ``map`` each its own.

    Raises:
        MapError: another shape or scale.
    """
    maps = np.asarray(maps, np.float64)
    if maps.ndim == 1:
        maps = maps[:, None, None]
    if maps.ndim != 3 or maps.size == 0:
        raise MapError(f"maps of one image, (C, H, W), can be shown, not shape {maps.shape}")
    if scale not in SCALES:
        raise MapError(f"scale={scale!r} must be {' or '.join(SCALES)}")
    total = len(maps)
    ends, colours = mosaic.limits(maps), "gray"
    if scale == "map":
        maps, ends = mosaic.scaled(maps, each=True), (0.0, 1.0)
    elif ends[0] < 0 < ends[1]:
        most = max(-ends[0], ends[1])
        ends, colours = (-most, most), "RdBu_r"
    if total > _MOST:
        title = f"{title}; maps 0 to {_MOST - 1} of {total}".removeprefix("; ")
    made = mosaic.grid(maps[:_MOST], "map")
    return mosaic.draw(made, title, ends, colours=colours, bar=scale == "all")

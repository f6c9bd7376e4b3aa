"""Helpers that make a network fit its images."""

from __future__ import annotations

import math

from convloom.nn.arguments import pair
from convloom.nn.module import Module


def features(network: Module, in_channels: int, image_size: int | tuple[int, int]) -> int:
    """How many numbers a network gives for one image. Raises ShapeError if the image is too small.

    Args:
        image_size: one number for square images, or (height, width).
    """
    graph = network.trace((in_channels, *pair(image_size, "image_size")), 1)
    return math.prod(graph.specs["output"].shape[1:])

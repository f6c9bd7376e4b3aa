"""A small VGG: four 3x3 convolutions (after Simonyan and Zisserman, arXiv 1409.1556)."""

from __future__ import annotations

from convloom.nn.init import Initialiser
from convloom.nn.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
from convloom.nn.models.sizes import features


def vgg_small(
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    *,
    init: str | Initialiser = "he",
) -> Sequential:
    """Conv 64, Conv 64, MaxPool 2, Conv 128, Conv 128, MaxPool 2, Flatten, Linear.

    All convolutions are 3x3 with padding 1, each with a ReLU behind it. Parameters are
    ``0.weight``, ``2.weight``, ``5.weight``, ``7.weight``, ``11.weight`` and their biases.
    """
    network = Sequential(
        Conv2d(in_channels, 64, 3, padding=1, init=init),
        ReLU(),
        Conv2d(64, 64, 3, padding=1, init=init),
        ReLU(),
        MaxPool2d(2),
        Conv2d(64, 128, 3, padding=1, init=init),
        ReLU(),
        Conv2d(128, 128, 3, padding=1, init=init),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
    )
    width = features(network, in_channels, image_size)
    return network.append(Linear(width, num_classes, init=init))

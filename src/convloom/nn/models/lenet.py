"""The seed network: two convolutions, one pooling, one fully connected layer."""

from __future__ import annotations

from convloom.nn.init import Initialiser
from convloom.nn.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
from convloom.nn.models.sizes import features


def lenet(
    num_classes: int = 10,
    in_channels: int = 1,
    image_size: int | tuple[int, int] = 28,
    *,
    init: str | Initialiser = "he",
) -> Sequential:
    """Conv 3x3 to 16, ReLU, Conv 3x3 to 32, ReLU, MaxPool 2, Flatten, Linear.

    Parameters are ``0.weight``, ``0.bias``, ``2.weight``, ``2.bias``, ``6.weight``, ``6.bias``;
    for 28x28 images of one channel there are 50,890 of them.
    """
    network = Sequential(
        Conv2d(in_channels, 16, 3, init=init),
        ReLU(),
        Conv2d(16, 32, 3, init=init),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
    )
    width = features(network, in_channels, image_size)
    return network.append(Linear(width, num_classes, init=init))

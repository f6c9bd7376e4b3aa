"""VGG (Simonyan and Zisserman, arXiv 1409.1556): that of 16 layers, and a small one of five."""

from __future__ import annotations

from convloom.nn.init import HeNormal, Initialiser
from convloom.nn.layers import (
    AdaptiveAvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
)
from convloom.nn.models.sizes import features
from convloom.nn.module import Module
from convloom.nn.tensor import SymbolicTensor

#: Filters of the convolutions of VGG-16; a pool ends each row.
_ROWS_16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


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


class VGG(Module):
    """Rows of 3x3 convolutions with a pool behind each, and three fully connected layers."""

    def __init__(self, features: Module, classifier: Module) -> None:
        super().__init__()
        self.features = features
        self.avgpool = AdaptiveAvgPool2d((7, 7))
        self.classifier = classifier

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        x = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return x


def vgg16(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    *,
    init: str | Initialiser | None = None,
) -> VGG:
    """torchvision's ``vgg16``: its names and shapes.

    ``image_size`` need not be said: the features are pooled to 7×7. With 1000 classes there are
    138,357,544 parameters.

    Args:
        init: how all weights begin. None is torchvision's: convolutions normal with variance
            2/fan_out, fully connected layers normal(0.01).
    """
    filters = HeNormal(outputs=True) if init is None else init
    weights = "normal(0.01)" if init is None else init
    maps = Sequential()
    channels = in_channels
    for row in _ROWS_16:
        for width in row:
            maps.append(Conv2d(channels, width, 3, padding=1, init=filters)).append(ReLU())
            channels = width
        maps.append(MaxPool2d(2))
    features(maps, in_channels, image_size)  # says so where an image is too small
    classifier = Sequential(
        Linear(channels * 7 * 7, 4096, init=weights),
        ReLU(),
        Dropout(),
        Linear(4096, 4096, init=weights),
        ReLU(),
        Dropout(),
        Linear(4096, num_classes, init=weights),
    )
    return VGG(maps, classifier)

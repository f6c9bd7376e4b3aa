"""AlexNet, as in the paper and as torchvision has it.

Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks,
NIPS 2012; Krizhevsky, One weird trick, arXiv 1404.5997 (torchvision's, of one column).
"""

from __future__ import annotations

from convloom.nn.init import Constant, Initialiser
from convloom.nn.layers import (
    AdaptiveAvgPool2d,
    Conv2d,
    Dropout,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Sequential,
)
from convloom.nn.models.sizes import features as width_of
from convloom.nn.module import Module
from convloom.nn.parameter import Parameter
from convloom.nn.tensor import SymbolicTensor

_Init = str | Initialiser


class AlexNet(Module):
    """Convolutions, a pooling that may be missing, and three fully connected layers."""

    def __init__(self, features: Module, avgpool: Module | None, classifier: Module) -> None:
        super().__init__()
        self.features = features
        self.avgpool = avgpool
        self.classifier = classifier

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        x = self.features(x)
        if self.avgpool is not None:
            x = self.avgpool(x)
        x = self.classifier(x.flatten(1))
        return x


def alexnet(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    *,
    init: _Init | None = None,
) -> AlexNet:
    """The network of 2012: two columns as groups, response normalisation, overlapping pools.

    Parameters are ``features.0``, ``features.4``, ``features.8``, ``features.10``,
    ``features.12``, ``classifier.1``, ``classifier.4``, ``classifier.6``; with 1000 classes there
    are 60,965,224. The first convolution has padding 2, which makes 55×55 of 224×224, as the paper
    says. The normalisation's alpha is 5 times the paper's 1e-4, because PyTorch's divides it by
    the size.

    Args:
        init: how all weights begin. None is the paper's: normal(0.01), and biases of 1 in the
            second, fourth and fifth convolution and in the hidden fully connected layers.
    """
    start: _Init = "normal(0.01)" if init is None else init

    def norm() -> LocalResponseNorm:
        return LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)

    features = Sequential(
        Conv2d(in_channels, 96, 11, stride=4, padding=2, init=start),
        ReLU(),
        norm(),
        MaxPool2d(3, 2),
        Conv2d(96, 256, 5, padding=2, groups=2, init=start),
        ReLU(),
        norm(),
        MaxPool2d(3, 2),
        Conv2d(256, 384, 3, padding=1, init=start),
        ReLU(),
        Conv2d(384, 384, 3, padding=1, groups=2, init=start),
        ReLU(),
        Conv2d(384, 256, 3, padding=1, groups=2, init=start),
        ReLU(),
        MaxPool2d(3, 2),
    )
    classifier = _classifier(width_of(features, in_channels, image_size), num_classes, start)
    if init is None:
        for layer in (*(features[i] for i in (4, 10, 12)), *(classifier[i] for i in (1, 4))):
            layer.bias = Parameter(layer.bias.shape, Constant(1.0))
    return AlexNet(features, None, classifier)


def alexnet_torchvision(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    *,
    init: _Init = "pytorch",
) -> AlexNet:
    """torchvision's ``alexnet``: its names, shapes and initial distribution.

    ``image_size`` need not be said: the features are pooled to 6×6. With 1000 classes there are
    61,100,840 parameters.
    """
    features = Sequential(
        Conv2d(in_channels, 64, 11, stride=4, padding=2, init=init),
        ReLU(),
        MaxPool2d(3, 2),
        Conv2d(64, 192, 5, padding=2, init=init),
        ReLU(),
        MaxPool2d(3, 2),
        Conv2d(192, 384, 3, padding=1, init=init),
        ReLU(),
        Conv2d(384, 256, 3, padding=1, init=init),
        ReLU(),
        Conv2d(256, 256, 3, padding=1, init=init),
        ReLU(),
        MaxPool2d(3, 2),
    )
    width_of(features, in_channels, image_size)  # says so where an image is too small
    return AlexNet(features, AdaptiveAvgPool2d((6, 6)), _classifier(9216, num_classes, init))


def _classifier(width: int, num_classes: int, init: _Init) -> Sequential:
    return Sequential(
        Dropout(),
        Linear(width, 4096, init=init),
        ReLU(),
        Dropout(),
        Linear(4096, 4096, init=init),
        ReLU(),
        Linear(4096, num_classes, init=init),
    )

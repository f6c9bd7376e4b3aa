"""LeNet-5 (LeCun, Bottou, Bengio and Haffner, Proceedings of the IEEE 86, 1998)."""

from __future__ import annotations

from convloom.nn.arguments import pair
from convloom.nn.init import Initialiser
from convloom.nn.layers import AvgPool2d, Conv2d, Linear, Tanh
from convloom.nn.models.sizes import features
from convloom.nn.module import Module
from convloom.nn.tensor import SymbolicTensor

#: Side of the images that the paper has; smaller ones are padded to it as MNIST's are.
_FIELD = 32


class LeNet5(Module):
    """Two convolutions with tanh and average pooling, three fully connected layers."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: int | tuple[int, int],
        init: str | Initialiser,
    ) -> None:
        super().__init__()
        padding = 2 if min(pair(image_size, "image_size")) < _FIELD else 0
        self.conv1 = Conv2d(in_channels, 6, 5, padding=padding, init=init)
        self.conv2 = Conv2d(6, 16, 5, init=init)
        self.pool = AvgPool2d(2)
        self.tanh = Tanh()
        width = features(_Features(self), in_channels, image_size)
        self.fc1 = Linear(width, 120, init=init)
        self.fc2 = Linear(120, 84, init=init)
        self.fc3 = Linear(84, num_classes, init=init)

    def maps(self, x: SymbolicTensor) -> SymbolicTensor:
        """The features behind the second pooling, (N, 16, H, W)."""
        x = self.pool(self.tanh(self.conv1(x)))
        x = self.pool(self.tanh(self.conv2(x)))
        return x

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        x = self.tanh(self.fc1(self.maps(x).flatten(1)))
        x = self.fc3(self.tanh(self.fc2(x)))
        return x


class _Features(Module):
    """The convolutional part alone."""

    def __init__(self, network: LeNet5) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return self.network.maps(x)


def lenet5(
    num_classes: int = 10,
    in_channels: int = 1,
    image_size: int | tuple[int, int] = 28,
    *,
    init: str | Initialiser = "xavier",
) -> LeNet5:
    """Conv 5x5 to 6, tanh, AvgPool 2, Conv 5x5 to 16, tanh, AvgPool 2, Linear 120, 84, classes.

    Parameters are ``conv1``, ``conv2``, ``fc1``, ``fc2``, ``fc3``; for images of 28×28 or 32×32 of
    one channel there are 61,706. As is usual now, the pools have no weights of their own, the
    second convolution sees all maps, tanh is not scaled, and the last layer is linear; weights
    begin as Glorot and Bengio have it, which suits tanh.
    """
    return LeNet5(num_classes, in_channels, image_size, init)

"""Residual networks (He, Zhang, Ren and Sun, arXiv 1512.03385): for ImageNet and for CIFAR."""

from __future__ import annotations

from convloom.nn.init import HeNormal, Initialiser
from convloom.nn.layers import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
)
from convloom.nn.module import Module
from convloom.nn.tensor import SymbolicTensor

_Init = str | Initialiser


class BasicBlock(Module):
    """Two 3x3 convolutions, each with batch normalisation, and what they are added to.

    Where the block changes the size, what it is added to passes a 1x1 convolution and batch
    normalisation (option B of the paper).
    """

    def __init__(self, in_channels: int, channels: int, stride: int, init: _Init) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, 3, stride, init)
        self.bn1 = BatchNorm2d(channels)
        self.relu = ReLU()
        self.conv2 = _conv(channels, channels, 3, 1, init)
        self.bn2 = BatchNorm2d(channels)
        self.downsample: Sequential | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = Sequential(
                _conv(in_channels, channels, 1, stride, init), BatchNorm2d(channels)
            )

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        identity = x if self.downsample is None else self.downsample(x)
        out: SymbolicTensor = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)) + identity)
        return out


class ResNet18(Module):
    """A 7x7 convolution and a pool, four stages of two blocks, a mean over the image, a Linear."""

    def __init__(self, num_classes: int, in_channels: int, filters: _Init, weights: _Init) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, 64, 7, 2, filters)
        self.bn1 = BatchNorm2d(64)
        self.relu = ReLU()
        self.maxpool = MaxPool2d(3, 2, 1)
        self.layer1 = _stage(64, 64, 2, 1, filters)
        self.layer2 = _stage(64, 128, 2, 2, filters)
        self.layer3 = _stage(128, 256, 2, 2, filters)
        self.layer4 = _stage(256, 512, 2, 2, filters)
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.fc = Linear(512, num_classes, init=weights)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.fc(self.avgpool(x).flatten(1))
        return x


class CifarResNet(Module):
    """A 3x3 convolution, three stages of blocks with 16, 32 and 64 channels, a mean, a Linear."""

    def __init__(
        self, blocks: int, num_classes: int, in_channels: int, filters: _Init, weights: _Init
    ) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, 16, 3, 1, filters)
        self.bn1 = BatchNorm2d(16)
        self.relu = ReLU()
        self.layer1 = _stage(16, 16, blocks, 1, filters)
        self.layer2 = _stage(16, 32, blocks, 2, filters)
        self.layer3 = _stage(32, 64, blocks, 2, filters)
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.fc = Linear(64, num_classes, init=weights)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.fc(self.avgpool(x).flatten(1))
        return x


def resnet18(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    *,
    init: _Init | None = None,
) -> ResNet18:
    """torchvision's ``resnet18``: its names, shapes and initial distribution.

    With 1000 classes there are 11,689,512 parameters; any ``image_size`` will do.

    Args:
        init: how all weights begin. None is torchvision's: convolutions normal with variance
            2/fan_out, the last layer as torch.nn.Linear.
    """
    return ResNet18(num_classes, in_channels, *_starts(init))


def resnet20(
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    *,
    init: _Init | None = None,
) -> CifarResNet:
    """The paper's network of 20 layers for CIFAR, with torchvision's names.

    Shortcuts that change the size are projections (option B), where the paper's CIFAR networks
    have none of their own; with 10 classes there are 272,474 parameters in place of 269,722.
    """
    return CifarResNet(3, num_classes, in_channels, *_starts(init))


def resnet56(
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    *,
    init: _Init | None = None,
) -> CifarResNet:
    """The paper's network of 56 layers for CIFAR; see ``resnet20``."""
    return CifarResNet(9, num_classes, in_channels, *_starts(init))


def _starts(init: _Init | None) -> tuple[_Init, _Init]:
    """How filters and the last layer's weights begin."""
    return (HeNormal(outputs=True), "pytorch") if init is None else (init, init)


def _conv(in_channels: int, channels: int, kernel: int, stride: int, init: _Init) -> Conv2d:
    """A convolution that keeps the size at stride 1; without bias, which the normalisation has."""
    return Conv2d(
        in_channels, channels, kernel, stride=stride, padding=kernel // 2, bias=False, init=init
    )


def _stage(in_channels: int, channels: int, blocks: int, stride: int, init: _Init) -> Sequential:
    """Blocks of which the first may halve the image."""
    first = BasicBlock(in_channels, channels, stride, init)
    return Sequential(first, *(BasicBlock(channels, channels, 1, init) for _ in range(blocks - 1)))

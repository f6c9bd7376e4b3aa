"""MobileNet (Howard et al., arXiv 1704.04861): depthwise and pointwise convolutions."""

from __future__ import annotations

from convloom.nn.init import HeNormal, Initialiser
from convloom.nn.layers import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Linear,
    ReLU6,
    Sequential,
)
from convloom.nn.module import Module
from convloom.nn.tensor import SymbolicTensor

_Init = str | Initialiser

#: (filters at width 1, stride) of the blocks, table 1 of the paper.
_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)


class MobileNetV1(Module):
    """A 3x3 convolution, 13 blocks of a depthwise and a pointwise one, a mean, a Linear.

    Batch normalisation and ReLU6 stand behind each convolution.
    """

    def __init__(
        self, width: float, num_classes: int, in_channels: int, filters: _Init, weights: _Init
    ) -> None:
        super().__init__()
        channels = int(32 * width)
        self.features = Sequential(_unit(in_channels, channels, 3, 2, 1, filters))
        for wide, stride in _BLOCKS:
            out = int(wide * width)
            depthwise = _unit(channels, channels, 3, stride, channels, filters)
            self.features.append(Sequential(depthwise, _unit(channels, out, 1, 1, 1, filters)))
            channels = out
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.classifier = Linear(channels, num_classes, init=weights)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        x = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return x


def mobilenet_v1_small(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    *,
    init: _Init | None = None,
) -> MobileNetV1:
    """MobileNet of half the width (0.5 MobileNet-224 of the paper's table 6).

    Parameters are ``features.0.0`` and ``features.0.1`` (convolution and normalisation),
    ``features.1.0.0`` … ``features.13.1.1`` and ``classifier``; with 1000 classes there are
    1,331,592, any ``image_size`` will do. ReLU6, where the paper's text says ReLU, is what its
    authors' code has.

    Args:
        init: how all weights begin. None: convolutions normal with variance 2/fan_out, the last
            layer as torch.nn.Linear.
    """
    starts: tuple[_Init, _Init] = (
        (HeNormal(outputs=True), "pytorch") if init is None else (init, init)
    )
    return MobileNetV1(0.5, num_classes, in_channels, *starts)


def _unit(
    in_channels: int, channels: int, kernel: int, stride: int, groups: int, init: _Init
) -> Sequential:
    return Sequential(
        Conv2d(
            in_channels,
            channels,
            kernel,
            stride=stride,
            padding=kernel // 2,
            groups=groups,
            bias=False,
            init=init,
        ),
        BatchNorm2d(channels),
        ReLU6(),
    )

"""The networks of the zoo in plain PyTorch, written from papers and torchvision's names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class AlexNet(nn.Module):
    def __init__(self, features: nn.Module, pool: nn.Module | None, width: int, classes: int):
        super().__init__()
        self.features = features
        if pool is not None:
            self.avgpool = pool
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(width, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: torch.Tensor) -> Any:
        x = self.features(x)
        if hasattr(self, "avgpool"):
            x = self.avgpool(x)
        return self.classifier(torch.flatten(x, 1))


def alexnet(classes: int, channels: int, size: int) -> nn.Module:
    """The paper's: its normalisation b = a / (2 + 1e-4 · the sum over 5 maps of a²)^0.75."""

    def norm() -> nn.Module:
        return nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2.0)

    features = nn.Sequential(
        nn.Conv2d(channels, 96, 11, 4, 2),
        nn.ReLU(),
        norm(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, 1, 2, groups=2),
        nn.ReLU(),
        norm(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(384, 384, 3, 1, 1, groups=2),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
    )
    side = (size + 4 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return AlexNet(features, None, 256 * side * side, classes)


def alexnet_torchvision(classes: int, channels: int, size: int) -> nn.Module:
    features = nn.Sequential(
        nn.Conv2d(channels, 64, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, 1, 1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
    )
    return AlexNet(features, nn.AdaptiveAvgPool2d((6, 6)), 256 * 6 * 6, classes)


class LeNet5(nn.Module):
    def __init__(self, classes: int, channels: int, size: int):
        super().__init__()
        padding = 2 if size < 32 else 0
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, 5)
        side = ((size + 2 * padding - 4) // 2 - 4) // 2
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: torch.Tensor) -> Any:
        for conv in (self.conv1, self.conv2):
            x = nn.functional.avg_pool2d(torch.tanh(conv(x)), 2)
        x = torch.tanh(self.fc1(torch.flatten(x, 1)))
        return self.fc3(torch.tanh(self.fc2(x)))


class VGG(nn.Module):
    def __init__(self, classes: int, channels: int, size: int):
        super().__init__()
        layers: list[nn.Module] = []
        for width in (64, 64, 0, 128, 128, 0, *(256,) * 3, 0, *(512,) * 3, 0, *(512,) * 3, 0):
            if width == 0:
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> Any:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """``widths`` of the stages; a network for ImageNet begins with 7x7 and a pool."""

    def __init__(self, classes: int, channels: int, widths: tuple[int, ...], blocks: int):
        super().__init__()
        self.large = widths[0] == 64
        inside = widths[0]
        kernel, stride, padding = (7, 2, 3) if self.large else (3, 1, 1)
        self.conv1 = nn.Conv2d(channels, inside, kernel, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(inside)
        self.depth = len(widths)
        for stage, width in enumerate(widths):
            first = Block(inside, width, 1 if stage == 0 else 2)
            rest = [Block(width, width, 1) for _ in range(blocks - 1)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(first, *rest))
            inside = width
        self.fc = nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = nn.functional.max_pool2d(x, 3, 2, 1)
        for stage in range(self.depth):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


class MobileNet(nn.Module):
    def __init__(self, classes: int, channels: int, size: int):
        super().__init__()

        def unit(inside: int, outside: int, kernel: int, stride: int, groups: int) -> nn.Module:
            conv = nn.Conv2d(
                inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False
            )
            return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU6())

        parts = [unit(channels, 16, 3, 2, 1)]
        inside = 16
        for outside, stride in zip(
            (32, 64, 64, 128, 128, *(256,) * 6, 512, 512),
            (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1),
            strict=True,
        ):
            depthwise = unit(inside, inside, 3, stride, inside)
            parts.append(nn.Sequential(depthwise, unit(inside, outside, 1, 1, 1)))
            inside = outside
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor) -> Any:
        return self.classifier(self.features(x).mean((2, 3)))


class Lenet(nn.Sequential):
    def __init__(self, classes: int, channels: int, size: int):
        side = (size - 4) // 2
        super().__init__(
            nn.Conv2d(channels, 16, 3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * side * side, classes),
        )


class VGGSmall(nn.Sequential):
    def __init__(self, classes: int, channels: int, size: int):
        super().__init__(
            nn.Conv2d(channels, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128 * (size // 4) ** 2, classes),
        )


#: {network: its twin for a number of classes, channels and a side of the images}.
TWINS: dict[str, Any] = {
    "lenet": Lenet,
    "lenet5": LeNet5,
    "vgg-small": VGGSmall,
    "vgg16": VGG,
    "alexnet": alexnet,
    "alexnet-torchvision": alexnet_torchvision,
    "resnet18": lambda n, c, size: ResNet(n, c, (64, 128, 256, 512), 2),
    "resnet20": lambda n, c, size: ResNet(n, c, (16, 32, 64), 3),
    "resnet56": lambda n, c, size: ResNet(n, c, (16, 32, 64), 9),
    "mobilenet-v1-small": MobileNet,
}

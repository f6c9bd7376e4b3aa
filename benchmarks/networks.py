"""What each network of the zoo is timed on: {name: (shape of an image, classes)}."""

from __future__ import annotations

_IMAGENET = (3, 224, 224)

ZOO_SHAPES: dict[str, tuple[tuple[int, int, int], int]] = {
    "lenet": ((1, 28, 28), 10),
    "lenet5": ((1, 28, 28), 10),
    "vgg-small": ((3, 32, 32), 10),
    "vgg16": (_IMAGENET, 1000),
    "alexnet": (_IMAGENET, 1000),
    "alexnet-torchvision": (_IMAGENET, 1000),
    "resnet18": (_IMAGENET, 1000),
    "resnet20": ((3, 32, 32), 10),
    "resnet56": ((3, 32, 32), 10),
    "mobilenet-v1-small": (_IMAGENET, 1000),
}

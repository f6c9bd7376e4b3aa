"""The layers, one file a family, with torch.nn's names, argument orders and defaults."""

from convloom.nn.layers.activation import (
    ELU,
    GELU,
    Activation,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from convloom.nn.layers.container import ModuleList, Sequential
from convloom.nn.layers.conv import Conv2d
from convloom.nn.layers.dropout import Dropout
from convloom.nn.layers.linear import Linear
from convloom.nn.layers.pool import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    MaxPool2d,
)
from convloom.nn.layers.shape import Flatten, Identity

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "Conv2d",
    "Dropout",
    "Flatten",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "ModuleList",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Tanh",
]

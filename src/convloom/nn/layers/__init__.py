"""The layers, one file a family, with torch.nn's names, argument orders and defaults."""

from convloom.nn.layers.activation import ReLU
from convloom.nn.layers.container import ModuleList, Sequential
from convloom.nn.layers.conv import Conv2d
from convloom.nn.layers.dropout import Dropout
from convloom.nn.layers.linear import Linear
from convloom.nn.layers.pool import AvgPool2d, MaxPool2d
from convloom.nn.layers.shape import Flatten, Identity

__all__ = [
    "AvgPool2d",
    "Conv2d",
    "Dropout",
    "Flatten",
    "Identity",
    "Linear",
    "MaxPool2d",
    "ModuleList",
    "ReLU",
    "Sequential",
]

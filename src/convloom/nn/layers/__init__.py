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
from convloom.nn.layers.conv import Conv2d, ConvTranspose2d
from convloom.nn.layers.dropout import Dropout, Dropout2d
from convloom.nn.layers.linear import Linear
from convloom.nn.layers.local import LocallyConnected2d, UnsharedBias
from convloom.nn.layers.norm import (
    BatchNorm1d,
    BatchNorm2d,
    ContrastNorm2d,
    GroupNorm,
    InstanceNorm2d,
    LocalResponseNorm,
    ResponseNorm2d,
)
from convloom.nn.layers.pool import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    MaxPool2d,
)
from convloom.nn.layers.shape import Flatten, Identity
from convloom.nn.layers.softmax import LogSoftmax, Softmax
from convloom.nn.layers.spatial import (
    Blur,
    ConstantPad2d,
    Mirror,
    Nailbed,
    ReflectionPad2d,
    ReplicationPad2d,
    Upsample,
    ZeroPad2d,
)

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Blur",
    "ConstantPad2d",
    "ContrastNorm2d",
    "Conv2d",
    "ConvTranspose2d",
    "Dropout",
    "Dropout2d",
    "Flatten",
    "GroupNorm",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm2d",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LocallyConnected2d",
    "LogSoftmax",
    "MaxPool2d",
    "Mirror",
    "ModuleList",
    "Nailbed",
    "ReLU",
    "ReLU6",
    "ReflectionPad2d",
    "ReplicationPad2d",
    "ResponseNorm2d",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "UnsharedBias",
    "Upsample",
    "ZeroPad2d",
]

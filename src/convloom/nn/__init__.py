"""Networks: modules, layers, losses, initialisers, files. Nothing here computes."""

from convloom.nn import functional, init, models
from convloom.nn.arguments import ArgumentError
from convloom.nn.functional import add, cat, concat, flatten, max_pool2d, relu
from convloom.nn.graphmodule import GraphModule
from convloom.nn.layers import (
    ELU,
    GELU,
    Activation,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    Hardswish,
    Hardtanh,
    Identity,
    LeakyReLU,
    Linear,
    MaxPool2d,
    ModuleList,
    ReLU,
    ReLU6,
    Sequential,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from convloom.nn.losses import CrossEntropyLoss
from convloom.nn.module import Module, Normalization
from convloom.nn.parameter import Parameter, WeightsError
from convloom.nn.runtime import set_predictor
from convloom.nn.serialization import load, load_weights
from convloom.nn.tensor import SymbolicTensor, TraceError

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "ArgumentError",
    "AvgPool2d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "GraphModule",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "Normalization",
    "Parameter",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "SymbolicTensor",
    "Tanh",
    "TraceError",
    "WeightsError",
    "add",
    "cat",
    "concat",
    "flatten",
    "functional",
    "init",
    "load",
    "load_weights",
    "max_pool2d",
    "models",
    "relu",
    "set_predictor",
]

"""Which compiled kernel runs an op: one module an op family, each with a function ``select``.

``select(node, specs, kernels)`` returns the Selection of the best kernel that serves these specs
and is no higher than the rung ``kernels``, or None. It looks at the op and the specs only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache

from convloom.backends.cpu.selectors.winograd import select_winograd
from convloom.ir import Node, Selection, TensorSpec

Selector = Callable[[Node, Mapping[str, TensorSpec], str], Selection | None]

#: {module of this package: the ops it serves}.
FAMILIES = {
    "mapping": (
        "Pad2d",
        "Pad2dGrad",
        "Resize2d",
        "Resize2dGrad",
        "Nailbed",
        "NailbedGrad",
        "Mirror",
        "Blur",
    ),
    "local": ("Local2d", "Local2dDgrad", "Local2dWgrad"),
    "bias": ("AddBias", "UnsharedBiasGrad"),
    "conv2d": (
        "Conv2d",
        "Conv2dDgrad",
        "Conv2dWgrad",
        "FusedConv2d",
        "FusedConv2dDgrad",
        "FusedConv2dWgrad",
        "PooledConv2dGrad",
        "BiasGrad",
    ),
    "dropout": ("Dropout", "DropoutGrad", "ChannelDropout", "ChannelDropoutGrad"),
    "elementwise": (
        "Activation",
        "ActivationGrad",
        "ReLU",
        "ReLUGrad",
        "Add",
        "WeightedSum",
        "FusedSum",
        "Mul",
    ),
    "linear": (
        "Linear",
        "LinearDgrad",
        "LinearWgrad",
        "FusedLinear",
        "FusedLinearDgrad",
        "FusedLinearWgrad",
    ),
    "loss": ("SoftmaxCrossEntropy", "SoftmaxCrossEntropyGrad", "TopKCorrect"),
    "norm": (
        "BatchNorm",
        "BatchNormGrad",
        "BatchNormInference",
        "FoldBatchNorm",
        "FusedBatchNorm",
        "FusedBatchNormGrad",
        "FusedBatchNormInference",
        "GroupNorm",
        "GroupNormGrad",
    ),
    "pointwise_loss": ("PointwiseLoss", "PointwiseLossGrad", "OneHot"),
    "pool": (
        "MaxPool2d",
        "MaxPool2dGrad",
        "AvgPool2d",
        "AvgPool2dGrad",
        "AdaptiveMaxPool2d",
        "AdaptiveMaxPool2dGrad",
        "AdaptiveAvgPool2d",
        "AdaptiveAvgPool2dGrad",
    ),
    "response_norm": (
        "LocalResponseNorm",
        "LocalResponseNormGrad",
        "FusedLocalResponseNormGrad",
        "ResponseNorm2d",
        "ResponseNorm2dGrad",
        "ContrastNorm2d",
        "ContrastNorm2dGrad",
    ),
    "shape": ("Concat", "Slice", "Flatten", "Unflatten"),
    "softmax": ("Softmax", "SoftmaxGrad"),
    "update": ("SGD", "AdamW", "GradientNorm"),
    "velocity": ("VelocitySGD",),
}


def select_kernel(node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
    """The compiled kernel for ``node``, or None when no family serves it."""
    if kernels in ("auto", "winograd"):
        selection = select_winograd(node, specs)
        if selection is not None:
            return selection
    selector = _selector(node.op.name)
    return selector(node, specs, kernels) if selector else None


@cache
def _selector(op: str) -> Selector | None:
    for family, ops in FAMILIES.items():
        if op in ops:
            selector: Selector = importlib.import_module(f"{__name__}.{family}").select
            return selector
    return None

"""What the selectors of every backend share: facts of specs, and a step's workspace."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from convloom.backends.launch import Workspace
from convloom.ir import Layout, Node, TensorSpec
from convloom.ops.activation import KINDS
from convloom.ops.pointwise_loss import LOSSES
from convloom.ops.velocity import VelocitySGD

Specs = Mapping[str, TensorSpec]

#: {family: its ops}: a backend has a module of selectors for each, and perhaps further families.
OP_FAMILIES = {
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
    ),
    "dropout": (
        "Dropout",
        "DropoutGrad",
        "ChannelDropout",
        "ChannelDropoutGrad",
        "NoisyReLU",
    ),
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
    "loss": ("SoftmaxCrossEntropy", "SoftmaxCrossEntropyGrad", "TopKCorrect", "TopKError"),
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
    "shape": ("Concat", "Slice", "Figures", "Flatten", "Unflatten"),
    "softmax": ("Softmax", "SoftmaxGrad"),
    "tree": ("PathSum", "LeafSum"),
    "update": ("SGD", "AdamW"),
    "velocity": ("VelocitySGD",),
}


def ceil_div(a: int, b: int) -> int:
    """The least integer that is at least a / b."""
    return -(-a // b)


def dtypes(node: Node, specs: Specs) -> tuple[str, ...]:
    """Element types of inputs, then outputs."""
    return tuple(specs[name].dtype for name in (*node.inputs, *node.outputs))


def same_order(a: Layout, b: Layout) -> bool:
    """Whether two layouts are the same order in memory (KRSC is NHWC by another name)."""
    return (a.order, a.view) == (b.order, b.view)


def alike(groups: Sequence[Sequence[str]], specs: Specs) -> bool:
    """Whether every tensor of every group is float32 and lies as the first group's does."""
    return all(
        specs[name].dtype == "float32" and same_order(specs[name].layout, specs[first].layout)
        for group in groups
        for name, first in zip(group, groups[0], strict=True)
    )


def rows_together(spec: TensorSpec) -> bool:
    """Whether axis 0 is outermost in memory, so that its slices (filters) lie one by one."""
    return spec.layout.order is None or spec.layout.order[0] == 0


@dataclass(frozen=True)
class Learning:
    """The tensors of one parameter in a VelocitySGD, by name.

    Attributes:
        floor: superEps; 0 for a gradient that is not divided by its size.
        means, new_means: the gradient's running mean and that of its square; empty without.
        sums: the sum of gradients before and after; empty without.
        divisors: None without.
        row: elements that share a divisor; 0 without divisors.
    """

    w: str
    g: str
    v: str
    new_w: str
    new_v: str
    means: tuple[str, ...]
    new_means: tuple[str, ...]
    sums: tuple[str, ...]
    floor: float
    divisors: str | None
    row: int


def learning(node: Node, specs: Specs) -> list[Learning] | None:
    """The parameters of a VelocitySGD, if kernels can update them.

    All tensors are float32 and lie as their parameter does; slices of axis 0 lie one by one where
    they are limited or have divisors.
    """
    op = node.op
    assert isinstance(op, VelocitySGD)
    new = {node.inputs[into]: node.outputs[out] for out, into in op.inplace.items()}
    floors, found = dict(op.adaptive), []
    for i, own in enumerate(op.operands):
        w, g, v, *means = (node.inputs[at] for at in (own.w, own.g, own.v, *(own.means or ())))
        sums = () if own.sum is None else (node.inputs[own.sum], new[node.inputs[own.sum]])
        made = [new[name] for name in (w, v, *means)]
        every = (w, g, v, *means, *made, *sums)
        if not alike([(w,) * len(every), every], specs):
            return None
        sliced = op.limits[i] or own.divisors is not None
        if sliced and not rows_together(specs[w]):
            return None
        divisors = None if own.divisors is None else node.inputs[own.divisors]
        row = specs[w].size // max(specs[w].shape[0], 1) if divisors else 0
        new_w, new_v, *new_means = made
        tensors, floor = (w, g, v, new_w, new_v), floors.get(i, 0.0)
        states = tuple(means), tuple(new_means), sums
        found.append(Learning(*tensors, *states, floor, divisors, row))
    return found


def rows_of_trees(node: Node, specs: Specs) -> bool:
    """Whether a sum along a tree's paths reads and makes float32 rows, one behind the other."""
    ends = [specs[name] for name in (node.inputs[0], node.outputs[0])]
    return all(spec.dtype == "float32" and spec.layout.order is None for spec in ends)


def activation_number(kind: str) -> int:
    """What kernels call an activation: 0 is none, 1 the rectifier, then KINDS in their order."""
    return ("none", "relu", *KINDS).index(kind)


def activation_constants(op: object) -> dict[str, int]:
    """The constants of a layer's activation: its number ACT, and its parameters' bits."""
    return _numbered("ACT", op, "activation")


def mask_constants(op: object) -> dict[str, int]:
    """As ``activation_constants``, of the activation that masks a gradient: MASK."""
    return _numbered("MASK", op, "mask")


def _numbered(constant: str, op: object, attribute: str) -> dict[str, int]:
    number = activation_number(getattr(op, attribute, "none"))
    constants = {constant: number}
    if number > activation_number("relu"):
        for name in ("a", "b"):
            (bits,) = struct.unpack("i", struct.pack("f", getattr(op, name)))
            constants[f"{constant}_{name.upper()}"] = bits
    return constants


def loss_number(kind: str) -> int:
    """What kernels call a pointwise loss: its place in LOSSES."""
    return list(LOSSES).index(kind)


def around(spec: TensorSpec, axis: int) -> tuple[int, int, int] | None:
    """(outer, K, inner): the extents before, of and behind a logical axis, in order of memory.

    None for a tensor that lies there as a view of another shape.
    """
    if spec.layout.view is not None:
        return None
    order = spec.layout.order or tuple(range(len(spec.shape)))
    at = order.index(axis)
    extents = [spec.shape[i] for i in order]
    return math.prod(extents[:at]), extents[at], math.prod(extents[at + 1 :])


@dataclass
class WorkspaceBuilder:
    """Collects the workspace of a step.

    Attributes:
        alignment: of each piece, in bytes.
        nbytes: what all pieces take.
    """

    alignment: ClassVar[int]
    specs: Specs
    nbytes: int = 0

    def workspace(self, nbytes: int) -> Workspace:
        """Reserve bytes of the step's workspace, aligned."""
        place = Workspace(self.nbytes)
        self.nbytes += ceil_div(nbytes, self.alignment) * self.alignment
        return place

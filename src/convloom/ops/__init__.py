"""The operations: what each one means. One file an op family."""

from convloom.ops.activation import (
    Activation,
    ActivationGrad,
    ReLU,
    ReLUGrad,
)
from convloom.ops.adaptive_pool import (
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dGrad,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool2dGrad,
)
from convloom.ops.arithmetic import Mul, WeightedSum
from convloom.ops.base import GradientScope, Op, from_json, to_json
from convloom.ops.batch_norm import BatchNorm, BatchNormGrad, BatchNormInference
from convloom.ops.bias import AddBias, UnsharedBiasGrad
from convloom.ops.chain import (
    Chain,
    ChainEvaluate,
    ChainForward,
    ChainGradient,
    ChainUpdate,
    Operands,
)
from convloom.ops.control import COUNTER, COUNTER_SPEC, HYPER, HYPER_SPEC
from convloom.ops.conv2d import BiasGrad, Conv2d, Conv2dDgrad, Conv2dWgrad, ConvGeometry
from convloom.ops.dropout import ChannelDropout, ChannelDropoutGrad, Dropout, DropoutGrad
from convloom.ops.fused import (
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
    FusedLinear,
    FusedLinearDgrad,
    FusedLinearWgrad,
    FusedSum,
    PooledConv2dGrad,
)
from convloom.ops.fused_norm import (
    FoldBatchNorm,
    FusedBatchNorm,
    FusedBatchNormGrad,
    FusedBatchNormInference,
    FusedLocalResponseNormGrad,
)
from convloom.ops.geometry import Pair, Window, pair
from convloom.ops.group_norm import GroupNorm, GroupNormGrad
from convloom.ops.linear import Linear, LinearDgrad, LinearWgrad
from convloom.ops.local import Local2d, Local2dDgrad, Local2dWgrad
from convloom.ops.loss import (
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    TargetError,
    check_targets,
)
from convloom.ops.metrics import Figures, TopKCorrect, TopKError
from convloom.ops.noise import NoisyReLU
from convloom.ops.pad import Pad2d, Pad2dGrad
from convloom.ops.pointwise_loss import OneHot, PointwiseLoss, PointwiseLossGrad
from convloom.ops.pool import AvgPool2d, AvgPool2dGrad, MaxPool2d, MaxPool2dGrad
from convloom.ops.precision import PRECISIONS, Round, RoundGradient, check_precision, rounded
from convloom.ops.resize import Resize2d, Resize2dGrad
from convloom.ops.response_norm import (
    ContrastNorm2d,
    ContrastNorm2dGrad,
    LocalResponseNorm,
    LocalResponseNormGrad,
    ResponseNorm2d,
    ResponseNorm2dGrad,
)
from convloom.ops.sampling import Blur, Mirror, Nailbed, NailbedGrad
from convloom.ops.shape import Add, Concat, Flatten, Slice, Unflatten
from convloom.ops.softmax import Softmax, SoftmaxGrad
from convloom.ops.tree import LeafSum, PathSum
from convloom.ops.update import SGD, AdamW, GradientNorm
from convloom.ops.velocity import FilterLimit, VelocitySGD

__all__ = [
    "COUNTER",
    "COUNTER_SPEC",
    "HYPER",
    "HYPER_SPEC",
    "PRECISIONS",
    "SGD",
    "Activation",
    "ActivationGrad",
    "AdamW",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool2dGrad",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool2dGrad",
    "Add",
    "AddBias",
    "AvgPool2d",
    "AvgPool2dGrad",
    "BatchNorm",
    "BatchNormGrad",
    "BatchNormInference",
    "BiasGrad",
    "Blur",
    "Chain",
    "ChainEvaluate",
    "ChainForward",
    "ChainGradient",
    "ChainUpdate",
    "ChannelDropout",
    "ChannelDropoutGrad",
    "Concat",
    "ContrastNorm2d",
    "ContrastNorm2dGrad",
    "Conv2d",
    "Conv2dDgrad",
    "Conv2dWgrad",
    "ConvGeometry",
    "Dropout",
    "DropoutGrad",
    "Figures",
    "FilterLimit",
    "Flatten",
    "FoldBatchNorm",
    "FusedBatchNorm",
    "FusedBatchNormGrad",
    "FusedBatchNormInference",
    "FusedConv2d",
    "FusedConv2dDgrad",
    "FusedConv2dWgrad",
    "FusedLinear",
    "FusedLinearDgrad",
    "FusedLinearWgrad",
    "FusedLocalResponseNormGrad",
    "FusedSum",
    "GradientNorm",
    "GradientScope",
    "GroupNorm",
    "GroupNormGrad",
    "LeafSum",
    "Linear",
    "LinearDgrad",
    "LinearWgrad",
    "Local2d",
    "Local2dDgrad",
    "Local2dWgrad",
    "LocalResponseNorm",
    "LocalResponseNormGrad",
    "MaxPool2d",
    "MaxPool2dGrad",
    "Mirror",
    "Mul",
    "Nailbed",
    "NailbedGrad",
    "NoisyReLU",
    "OneHot",
    "Op",
    "Operands",
    "Pad2d",
    "Pad2dGrad",
    "Pair",
    "PathSum",
    "PointwiseLoss",
    "PointwiseLossGrad",
    "PooledConv2dGrad",
    "ReLU",
    "ReLUGrad",
    "Resize2d",
    "Resize2dGrad",
    "ResponseNorm2d",
    "ResponseNorm2dGrad",
    "Round",
    "RoundGradient",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropy",
    "SoftmaxCrossEntropyGrad",
    "SoftmaxGrad",
    "TargetError",
    "TopKCorrect",
    "TopKError",
    "Unflatten",
    "UnsharedBiasGrad",
    "VelocitySGD",
    "WeightedSum",
    "Window",
    "check_precision",
    "check_targets",
    "from_json",
    "pair",
    "rounded",
    "to_json",
]

"""The stages that the kernels know, read from a chain; and why a chain does not qualify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from convloom.backends.selecting import same_order
from convloom.ir import KRSC, NHWC, TensorSpec
from convloom.ops import (
    Activation,
    AvgPool2d,
    Chain,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    SoftmaxCrossEntropy,
)
from convloom.ops.base import Op
from convloom.ops.geometry import Pair
from convloom.ops.loss import PROBABILITY

#: The pools that a convolution takes with it.
_MAXIMUM, _AVERAGE = MaxPool2d((2, 2), (2, 2)), AvgPool2d((2, 2), (2, 2))


class UnfitError(Exception):
    """Why a chain does not qualify: one phrase."""


@dataclass(frozen=True)
class ConvStage:
    """A convolution, and what of it is done at once: bias, activation, 2x2 pool.

    Attributes:
        pool: whether one follows; ``average``: whether it takes the average, of what the rectifier
            made; else the maximum.
        out: rows and columns before pooling.
        row: whether filters lie KCRS; else KRSC.
        weight: which of the chain's parameters; its bias is the next.
    """

    channels: int
    size: Pair
    filters: int
    kernel: Pair
    out: Pair
    stride: Pair
    padding: Pair
    bias: bool
    row: bool
    weight: int
    activation: ReLU | Activation | None = None
    pool: bool = False
    average: bool = False

    @property
    def handed_on(self) -> Pair:
        """Rows and columns of what the next stage reads."""
        return (self.out[0] // 2, self.out[1] // 2) if self.pool else self.out


@dataclass(frozen=True)
class LinearStage:
    """A fully connected layer, with bias, activation, dropout.

    Attributes:
        channels, pixels: of what it reads, flattened.
        row: whether the features lie channel by channel in the weight; else pixel by pixel.
        together: channels that lie side by side, in 16 bytes.
    """

    channels: int
    pixels: int
    outputs: int
    bias: bool
    row: bool
    weight: int
    activation: ReLU | Activation | None = None
    dropout: Dropout | None = None
    together: int = 8

    @property
    def width(self) -> int:
        """Features as they lie: planes of a few channels, padded to a multiple of 16."""
        planes = -(-self.channels // self.together)
        return -(-(planes * self.pixels * self.together) // 16) * 16

    @property
    def out(self) -> int:
        """Outputs, padded to a multiple of 16."""
        return -(-self.outputs // 16) * 16


@dataclass(frozen=True)
class Stages:
    """A chain as the kernels see it: convolutions, then fully connected layers."""

    convs: tuple[ConvStage, ...]
    linears: tuple[LinearStage, ...]


def stages_of(chain: Chain, inputs: Sequence[TensorSpec]) -> Stages:
    """The stages of a chain whose inputs have these specs. Raises UnfitError."""
    operands = chain.operands(inputs)
    if any(spec.dtype != "float32" for spec in (operands.x, *operands.parameters)):
        raise UnfitError("its tensors are not all float32")
    if chain.has_loss:
        loss = chain.stages[-2]
        assert isinstance(loss, SoftmaxCrossEntropy)
        if loss.target == PROBABILITY:
            raise UnfitError("its targets are distributions, not class indices")
    reader = _Reader()
    specs = chain.specs_of_stages(inputs)
    for i, op in enumerate(chain.body):
        own = chain.parameters_of(i)
        reader.read(op, specs[i], specs[i + 1], operands.parameters[own], own.start)
    return reader.done()


@dataclass
class _Reader:
    convs: tuple[ConvStage, ...] = ()
    linears: tuple[LinearStage, ...] = ()
    flat: bool = False

    def read(
        self,
        op: Op,
        before: TensorSpec,
        after: TensorSpec,
        parameters: Sequence[TensorSpec],
        weight: int,
    ) -> None:
        if isinstance(op, Conv2d):
            self._conv(op, before, after, parameters, weight)
        elif isinstance(op, Linear):
            self._linear(before, parameters, weight)
        elif isinstance(op, ReLU | Activation):
            self._activation(op)
        elif op in (_MAXIMUM, _AVERAGE) and self.convs and not self.convs[-1].pool:
            if self.flat or min(after.shape[2:]) < 1:
                raise UnfitError("a pool has no window")
            conv = replace(self.convs[-1], pool=True, average=op == _AVERAGE)
            if conv.average and isinstance(conv.activation, Activation):
                raise UnfitError(f"{conv.activation} stands before an average pool")
            self.convs = (*self.convs[:-1], conv)
        elif isinstance(op, Flatten):
            self.flat = True
        elif isinstance(op, Dropout):
            self._dropout(op)
        else:
            raise UnfitError(f"stage {op} has no on-chip kernel where it stands")

    def done(self) -> Stages:
        if not self.linears:
            raise UnfitError("it does not end with a fully connected layer")
        last = self.linears[-1]
        if last.activation is not None or last.dropout is not None:
            raise UnfitError("its logits are not those of a fully connected layer alone")
        return Stages(self.convs, self.linears)

    def _conv(
        self,
        op: Conv2d,
        before: TensorSpec,
        after: TensorSpec,
        parameters: Sequence[TensorSpec],
        weight: int,
    ) -> None:
        if self.linears or self.flat:
            raise UnfitError("a convolution stands behind the flattened features")
        w = parameters[0]
        kernel = (w.shape[2], w.shape[3])
        if op.groups != 1 or op.dilation != (1, 1):
            raise UnfitError("a convolution has groups or dilation")
        if max(op.stride) > 2 or max(kernel) > 7:
            raise UnfitError("a convolution has a stride above 2 or a filter above 7x7")
        if any(pad > size - 1 for pad, size in zip(op.padding, kernel, strict=True)):
            raise UnfitError("a convolution is padded by more than its filter less one")
        row = w.layout.order is None
        if not row and not same_order(w.layout, KRSC):
            raise UnfitError("a convolution's filters lie in an order that is not known")
        self.convs += (
            ConvStage(
                channels=before.shape[1],
                size=(before.shape[2], before.shape[3]),
                filters=w.shape[0],
                kernel=kernel,
                out=(after.shape[2], after.shape[3]),
                stride=op.stride,
                padding=op.padding,
                bias=len(parameters) > 1,
                row=row,
                weight=weight,
            ),
        )

    def _linear(self, before: TensorSpec, parameters: Sequence[TensorSpec], weight: int) -> None:
        w = parameters[0]
        outputs, width = w.shape
        if self.linears:
            channels, pixels = width, 1
        elif self.convs:
            if not self.flat:
                raise UnfitError("a fully connected layer reads images")
            height, columns = self.convs[-1].handed_on
            channels, pixels = self.convs[-1].filters, height * columns
        else:
            channels, pixels = width, 1
        row = w.layout.order is None
        flattened = w.layout.order == (0, 2, 3, 1) and w.layout.view is not None
        if not row and (not flattened or not self.convs or self.linears):
            raise UnfitError("a fully connected weight lies in an order that is not known")
        bias = len(parameters) > 1
        self.linears += (LinearStage(channels, pixels, outputs, bias, row, weight),)

    def _activation(self, op: ReLU | Activation) -> None:
        stage = (self.linears or self.convs or (None,))[-1]
        if stage is None:
            raise UnfitError("an activation stands first")
        if not _rises(op):
            raise UnfitError(f"the gradient of {op} is not known from its output alone")
        if stage.activation is not None and stage.activation != op:
            raise UnfitError("one activation follows another")
        if isinstance(stage, LinearStage):
            if stage.dropout is not None:
                raise UnfitError("an activation stands behind dropout")
            self.linears = (*self.linears[:-1], replace(stage, activation=op))
        else:
            if stage.average:
                raise UnfitError("an activation stands behind an average pool")
            # One that rises and a maximum pool may change places; nothing else stands between.
            self.convs = (*self.convs[:-1], replace(stage, activation=op))

    def _dropout(self, op: Dropout) -> None:
        if not self.linears or self.linears[-1].dropout is not None:
            raise UnfitError("dropout stands elsewhere than behind a fully connected layer")
        self.linears = (*self.linears[:-1], replace(self.linears[-1], dropout=op))


def _rises(op: ReLU | Activation) -> bool:
    """Whether a function never falls, and has its slope from its value."""
    if isinstance(op, ReLU):
        return True
    rising = op.kind in ("clamp", "sigmoid", "leaky_relu", "elu")
    return op.reads == "y" and (rising or (op.kind == "tanh" and op.a * op.b > 0))


def input_order(spec: TensorSpec) -> bool:
    """Whether the input lies row-major, else channels last. Raises UnfitError."""
    if spec.layout.order is None:
        return True
    if len(spec.shape) == 4 and same_order(spec.layout, NHWC):
        return False
    raise UnfitError("its input lies in an order that is not known")

"""A whole small network as one op: what an on-chip segment computes (compiler/segment.py).

The stages are the forward ops themselves, in order; each reads what the one before it made. The
last two are SoftmaxCrossEntropy and TopKCorrect, which both read the logits; a ChainForward ends
with the logits. References put the stages and their gradient rules together as a little graph.

Operands, in this order, of which a chain has those that it needs:

    x              input of the first stage
    parameters     of each Conv2d and Linear in order: weight, then bias if it has one
    target         of the loss; then label, int64 (N,), where the target is a distribution
    counter        where a stage is a Dropout
    dloss          () gradient of the loss: gradients and updates
    hyper, states  updates: as the update rule takes them, states in the parameters' order

Precision: with ``tf32`` or ``bf16`` the operands of every product (Conv2d, Linear) are rounded
(ops/precision.py) where they are stored for it: its input, its weight, and in the backward pass the
gradient of its output, from which bias gradients are summed as well. Everything else is float32:
accumulation, bias, activations, pooling and its winners, dropout, logits and their gradient (also
where a product makes the logits; the kernels of GPUs round that gradient, too), loss, gradients of
parameters, parameters and states. ``fp32`` rounds nothing, and a chain's reference gives the bits
of the layers' references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from convloom.ir import Graph, GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.control import COUNTER_SPEC
from convloom.ops.conv2d import Conv2d
from convloom.ops.dropout import Dropout
from convloom.ops.linear import Linear
from convloom.ops.loss import PROBABILITY, SoftmaxCrossEntropy
from convloom.ops.metrics import TopKCorrect
from convloom.ops.precision import FP32, PRECISIONS, Round, RoundGradient
from convloom.ops.update import SGD, AdamW

#: Stages with parameters: their products are what precision is about.
PRODUCTS = (Conv2d, Linear)

#: What every chain but a ChainForward ends with.
_HEAD = (SoftmaxCrossEntropy, TopKCorrect)
#: The update of no parameter.
_NOTHING = SGD((), ())

_T = TypeVar("_T")


@dataclass(frozen=True)
class Operands(Generic[_T]):
    """A chain's inputs by what they are: names, specs or arrays, whatever they were given as."""

    x: _T
    parameters: tuple[_T, ...] = ()
    target: _T | None = None
    label: _T | None = None
    counter: _T | None = None
    dloss: _T | None = None
    hyper: _T | None = None
    states: tuple[_T, ...] = ()

    def all(self) -> tuple[_T, ...]:
        """The operands in the order in which a chain takes them."""
        one = (self.target, self.label, self.counter, self.dloss, self.hyper)
        there = tuple(value for value in one if value is not None)
        return (self.x, *self.parameters, *there, *self.states)


@dataclass(frozen=True)
class Chain(Op):
    """What all chains share.

    Attributes:
        stages: the forward ops, in order.
        bias: for each Conv2d and Linear in order, whether it has a bias.
        precision: ``fp32``, ``tf32`` or ``bf16``: what the operands of products are rounded to.
    """

    stages: tuple[Op, ...]
    bias: tuple[bool, ...]
    precision: str = FP32

    @property
    def body(self) -> tuple[Op, ...]:
        """The stages up to the logits."""
        return tuple(op for op in self.stages if not isinstance(op, _HEAD))

    @property
    def products(self) -> tuple[int, ...]:
        """Indices of the stages that have parameters."""
        return tuple(i for i, op in enumerate(self.stages) if isinstance(op, PRODUCTS))

    @property
    def count(self) -> int:
        """Number of parameters."""
        return len(self.bias) + sum(self.bias)

    @property
    def has_loss(self) -> bool:
        """Whether the chain goes on to the loss."""
        return True

    @property
    def has_gradients(self) -> bool:
        """Whether the chain goes on to gradients."""
        return False

    @property
    def state_count(self) -> int:
        """States that are updated."""
        return 0

    @property
    def draws(self) -> bool:
        """Whether a stage draws random numbers."""
        return any(isinstance(op, Dropout) for op in self.stages)

    def operands(self, values: Sequence[_T]) -> Operands[_T]:
        """A chain's inputs, by what they are. Raises ShapeError if there are too few or many."""
        rest = list(values)
        wanted = 1 + self.count + sum(self._present().values()) + self.state_count
        if len(rest) != wanted:
            raise ShapeError(f"{self.name} of these stages takes {wanted} tensors, not {len(rest)}")
        x, parameters = rest[0], tuple(rest[1 : 1 + self.count])
        del rest[: 1 + self.count]
        named = {name: rest.pop(0) for name, there in self._present().items() if there}
        return Operands(x, parameters, states=tuple(rest), **named)

    def parameters_of(self, stage: int) -> slice:
        """Which of the parameters a stage has: weight, then bias; none for most stages."""
        before = [i for i in self.products if i < stage]
        start = sum(1 + self.bias[n] for n in range(len(before)))
        if stage not in self.products:
            return slice(start, start)
        return slice(start, start + 1 + self.bias[len(before)])

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self._check()
        graph = _graph(self, tuple(TensorSpec(spec.shape, spec.dtype) for spec in inputs))
        return tuple(graph.specs[name] for name in graph.outputs)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        specs = tuple(TensorSpec(value.shape, str(value.dtype)) for value in inputs)
        graph = _graph(self, specs)
        known = dict(zip(graph.roles, inputs, strict=True))
        for node in graph.nodes:
            results = node.op.reference(*(known[name] for name in node.inputs))
            known.update(zip(node.outputs, results, strict=True))
        return tuple(known[name] for name in graph.outputs)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """The sum over the stages, their gradients and the update; rounding is not counted."""
        graph = _graph(self, tuple(TensorSpec(spec.shape, spec.dtype) for spec in inputs))
        return sum(
            node.op.flops(
                [graph.specs[name] for name in node.inputs],
                [graph.specs[name] for name in node.outputs],
            )
            for node in graph.nodes
            if isinstance(node.op, Op) and not isinstance(node.op, Round | RoundGradient)
        )

    def specs_of_stages(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """What each stage reads, then the logits: one spec more than the body has stages."""
        operands = self.operands(inputs)
        specs = [operands.x]
        for i, op in enumerate(self.body):
            own = operands.parameters[self.parameters_of(i)]
            drawn = (COUNTER_SPEC,) if isinstance(op, Dropout) else ()
            specs.append(op.infer(specs[-1], *own, *drawn)[0])
        return tuple(specs)

    def titles(self, inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
        """Each stage with what it makes for one image, as a plan shows it: ``Conv2d 16×26×26``."""
        made = self.specs_of_stages(inputs)[1:]
        shown = ["×".join(map(str, spec.shape[1:])) for spec in made]
        body = [f"{op.name} {shape}" for op, shape in zip(self.body, shown, strict=True)]
        return (*body, *(op.name for op in self.stages[len(body) :]))

    def __str__(self) -> str:
        stages = " → ".join(op.name for op in self.stages)
        return f"{self.name}({stages}, precision={self.precision})"

    def _present(self) -> dict[str, bool]:
        """{operand between parameters and states: whether this chain has it}, in order."""
        loss = self.stages[-2] if len(self.stages) > 1 else None
        distribution = isinstance(loss, SoftmaxCrossEntropy) and loss.target == PROBABILITY
        return {
            "target": self.has_loss,
            "label": self.has_loss and distribution,
            "counter": self.draws,
            "dloss": self.has_gradients,
            "hyper": self.state_count > 0,
        }

    def _check(self) -> None:
        if self.precision not in PRECISIONS:
            raise ShapeError(f"precision must be one of {PRECISIONS}, it is {self.precision!r}")
        kinds = tuple(type(op) for op in self.stages)
        if len(self.bias) != len(self.products):
            raise ShapeError(
                f"a chain of {len(self.products)} products says {len(self.bias)} times whether "
                "one has a bias"
            )
        ends = kinds[-2:] == _HEAD if self.has_loss else True
        if not ends or any(kind in _HEAD for kind in kinds[: -2 if self.has_loss else None]):
            wanted = "SoftmaxCrossEntropy and TopKCorrect" if self.has_loss else "the logits"
            raise ShapeError(f"a {self.name} must end with {wanted}")


@dataclass(frozen=True)
class ChainForward(Chain):
    """Inputs x, parameters[, counter]; output logits (or whatever the last stage makes)."""

    @property
    def has_loss(self) -> bool:
        return False


@dataclass(frozen=True)
class ChainEvaluate(Chain):
    """Inputs x, parameters, target[, label]; outputs logits, loss (), correct int32 (2,)."""

    @property
    def arity_out(self) -> int:
        return 3


@dataclass(frozen=True)
class ChainGradient(Chain):
    """Logits, loss and right answers, and the gradient of every parameter.

    Inputs x, parameters, target[, label][, counter], dloss; outputs logits, loss (), correct int32
    (2,), then dx if ``needs_dx``, then a gradient for each parameter.
    """

    needs_dx: bool = False

    @property
    def has_gradients(self) -> bool:
        return True

    @property
    def arity_out(self) -> int:
        return 3 + self.needs_dx + self.count


@dataclass(frozen=True)
class ChainUpdate(ChainGradient):
    """A ``ChainGradient`` and the update of all its parameters.

    Inputs x, parameters, target[, label][, counter], dloss, hyper, states; outputs logits, loss,
    correct, gradients, then new parameters and new states, which overwrite the old ones.

    Attributes:
        update: the rule, without clipping; its i-th parameter is the chain's.
    """

    update: SGD | AdamW = _NOTHING

    @property
    def state_count(self) -> int:
        return self.update.states * self.count

    @property
    def arity_out(self) -> int:
        return super().arity_out + self.update.arity_out

    @property
    def inplace(self) -> Mapping[int, int]:
        first = 3 + self.needs_dx + self.count
        states = 1 + self.count + sum(self._present().values())
        pairs = {first + i: 1 + i for i in range(self.count)}
        return pairs | {first + self.count + i: states + i for i in range(self.state_count)}

    def _check(self) -> None:
        super()._check()
        if self.update.clip or self.update.count != self.count:
            raise ShapeError(
                f"a chain of {self.count} parameters needs an update rule for as many, without "
                f"clipping; it got one for {self.update.count}"
            )


@lru_cache(maxsize=256)
def _graph(chain: Chain, specs: tuple[TensorSpec, ...]) -> Graph:
    """The chain as a graph of plain ops; its inputs are declared in the operands' order."""
    builder = GraphBuilder()
    named = chain.operands([f"operand{i}" for i in range(len(specs))])
    for name, spec in zip(named.all(), specs, strict=True):
        builder.declare(name, spec, Role.INPUT)
    logits = _forward(builder, chain, named)
    outputs = [logits]
    if chain.has_loss:
        outputs += _loss(builder, chain, named, logits)
    if isinstance(chain, ChainGradient):
        wanted = ((named.x,) if chain.needs_dx else ()) + named.parameters
        assert named.dloss is not None
        grads = _gradients(builder, outputs[1], named.dloss, wanted)
        outputs += [grads[name] for name in wanted]
        if isinstance(chain, ChainUpdate):
            own = [grads[name] for name in named.parameters]
            assert named.hyper is not None
            inputs = (named.hyper, *named.parameters, *own, *named.states)
            outputs += builder.add(chain.update, inputs, names=_names("new", chain.update))
    builder.outputs.extend(outputs)
    return builder.build()


def _forward(builder: GraphBuilder, chain: Chain, named: Operands[str]) -> str:
    """Add the stages up to the logits, with operands of products rounded."""
    now = named.x
    last = len(chain.body) - 1
    for i, op in enumerate(chain.body):
        own = list(named.parameters[chain.parameters_of(i)])
        if isinstance(op, PRODUCTS) and chain.precision != FP32:
            (now,) = builder.add(Round(chain.precision), (now,))
            (own[0],) = builder.add(Round(chain.precision), (own[0],))
        if isinstance(op, Dropout):
            assert named.counter is not None
            own.append(named.counter)
        now = builder.add(op, (now, *own), names=_names(op.name, op))[0]
        if isinstance(op, PRODUCTS) and chain.precision != FP32 and i != last:
            (now,) = builder.add(RoundGradient(chain.precision), (now,))
    return now


def _loss(builder: GraphBuilder, chain: Chain, named: Operands[str], logits: str) -> list[str]:
    entropy, top = chain.stages[-2:]
    assert named.target is not None
    label = named.target if named.label is None else named.label
    loss, _ = builder.add(entropy, (logits, named.target), names=_names("loss", entropy))
    return [loss, *builder.add(top, (logits, label), names=["correct"])]


def _gradients(
    builder: GraphBuilder, loss: str, seed: str, wanted: Sequence[str]
) -> dict[str, str]:
    """Add the backward ops; {tensor: its gradient}. In a chain no tensor has two of them."""
    nodes = builder.build().nodes
    active = set(wanted)
    for node in nodes:
        if active.intersection(node.inputs):
            active.update(node.outputs)
    grads = {loss: seed}
    for node in reversed(nodes):
        arriving = tuple(grads.get(name) for name in node.outputs)
        if any(arriving):
            scope = GradientScope(builder, node, arriving, tuple(n in active for n in node.inputs))
            assert isinstance(node.op, Op)
            made = zip(node.inputs, node.op.gradient(scope), strict=True)
            grads.update({name: grad for name, grad in made if grad and name in active})
    return grads


def _names(stem: str, op: Op) -> list[str]:
    return [f"{stem}{i}" for i in range(op.arity_out)]

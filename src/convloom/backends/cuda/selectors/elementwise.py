"""Kernels for ops that treat every element alike: activations, sums, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    dtypes,
)
from convloom.backends.selecting import activation_number
from convloom.ir import Node, Selection
from convloom.ops import (
    Activation,
    ActivationGrad,
    Add,
    FusedSum,
    Mul,
    ReLU,
    ReLUGrad,
    WeightedSum,
)

Build = Callable[[Node, Specs], Selection | None]

#: Inputs of a sum that one launch adds up.
_TERMS = 4


def _one_each(rung: str) -> Build:
    """A thread an element, or four elements of the tiled rung; other orders are reordered first."""

    def build_of(node: Node, specs: Specs) -> Selection | None:
        if set(dtypes(node, specs)) != {"float32"}:
            return None
        (output,) = node.outputs
        build = Builder(specs)
        places = [build.input(name, specs[output].layout) for name in node.inputs]
        inputs = [place for place in places if place is not None]
        if len(inputs) < len(places):
            return None
        add = _Adder(build, rung, Tensor(output), specs[output].size)
        return build.selection(rung, add.launch(node.op, inputs))

    return build_of


@dataclass(frozen=True)
class _Adder:
    """Adds the launches of an element-wise op to a step."""

    build: Builder
    rung: str
    to: Tensor
    size: int

    def launch(self, op: object, inputs: Sequence[Argument]) -> str:
        """The folder of the kernel taken."""
        if isinstance(op, Add | WeightedSum | FusedSum):
            coefficients = getattr(op, "coefficients", (1.0,) * len(inputs))
            return self.sum(inputs, coefficients, isinstance(op, FusedSum))
        if isinstance(op, Mul):
            return self.each("product", {}, inputs, ())
        if isinstance(op, ReLU | ReLUGrad):
            kind, facts = "relu", (0.0, 0.0)
        else:
            assert isinstance(op, Activation | ActivationGrad)
            kind, facts = op.kind, (float(op.a), float(op.b))
        constants = {"KIND": activation_number(kind)}
        if isinstance(op, ReLU | Activation):
            return self.each("activation", constants, inputs, facts)
        # A gradient that reads nothing but dy is given it twice.
        return self.each("activation_grad", constants, (inputs[0], inputs[-1]), facts)

    def each(
        self,
        source: str,
        constants: dict[str, int],
        inputs: Sequence[Argument],
        facts: Sequence[float],
    ) -> str:
        arguments = (*inputs, self.to, self.size, *facts)
        threads = ceil_div(self.size, 4) if self.rung == "tiled" else self.size
        self.build.each(f"{source}/{self.rung}", constants, arguments, threads)
        return source

    def sum(self, inputs: Sequence[Argument], coefficients: Sequence[float], relu: bool) -> str:
        """Four terms a launch; what is left is added to the sum so far."""
        first, rest = min(_TERMS, len(inputs)), len(inputs) - _TERMS
        self.terms(inputs[:first], coefficients[:first], relu and rest <= 0)
        if rest > 0:
            return self.sum((self.to, *inputs[first:]), (1.0, *coefficients[first:]), relu)
        return "weighted_sum"

    def terms(self, inputs: Sequence[Argument], coefficients: Sequence[float], relu: bool) -> None:
        absent = _TERMS - len(inputs)
        constants = {"COUNT": len(inputs), "SCALED": int(set(coefficients) != {1.0})}
        if self.rung == "tiled":
            constants["RELU"] = int(relu)
        factors = (*map(float, coefficients), *(1.0,) * absent)
        self.each("weighted_sum", constants, (*inputs, *(ABSENT,) * absent), factors)


_PLAIN = ("ReLU", "ReLUGrad", "Activation", "ActivationGrad", "Add", "WeightedSum", "Mul")

LADDER = {
    **{(op, rung): _one_each(rung) for op in _PLAIN for rung in ("naive", "tiled")},
    ("FusedSum", "tiled"): _one_each("tiled"),
}

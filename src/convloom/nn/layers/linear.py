"""The fully connected layer."""

from __future__ import annotations

from typing import Any

from convloom.nn import functional
from convloom.nn import init as initialisers
from convloom.nn.arguments import no_placement, whole
from convloom.nn.layers.base import Layer, named
from convloom.nn.parameter import Parameter
from convloom.nn.tensor import SymbolicTensor


class Linear(Layer):
    """y = x w^T + b for x (N, in_features), as torch.nn.Linear.

    Args:
        device: not taken; a network's device is chosen when it is compiled.
        dtype: only float32.
        init: how weights begin; see nn/init.py. ``pytorch`` for torch's own default.

    Attributes:
        weight: (out_features, in_features).
        bias: (out_features,), or None.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        init: str | initialisers.Initialiser = "he",
    ) -> None:
        super().__init__()
        with named(f"Linear({in_features}, {out_features})"):
            no_placement(device, dtype)
            self.in_features = whole(in_features, "in_features")
            self.out_features = whole(out_features, "out_features")
            weight, offset = initialisers.resolve(init, self.in_features)
        self.weight = Parameter((self.out_features, self.in_features), weight)
        self.bias = Parameter((self.out_features,), offset) if bias else None

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )

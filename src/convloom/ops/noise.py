"""A rectifier with noise as large as what it passes, cuda-convnet's ``nrelu`` neuron.

    r = max(0, x);  y = max(0, r + r n),  n standard normal

Element i of the logical (NCHW) order takes number i of the stream (seed, stream, step), as
``convloom.random.normal`` makes it. There is noise in predictions too; with ``fixed`` the numbers
are those of seed 0 and step 0, so that the same images give the same predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from convloom.ir import TensorSpec
from convloom.ops.activation import ReLU, ReLUGrad
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.control import check_draw, counter_vector
from convloom.random import normal

#: What stands for the counter of fixed noise.
_FIXED = counter_vector(0, 0)


@dataclass(frozen=True)
class NoisyReLU(Op):
    """Inputs x, any shape, and counter, uint64 (2,), which fixed noise does without; output y.

    ``stream`` sets one layer's noise apart from another's (``convloom.random.stream_id``).
    """

    gradient_note: ClassVar[str] = "not a true gradient: the noise is held constant, as it was then"

    stream: int = 0
    fixed: bool = False

    @property
    def arity_in(self) -> int | None:
        return 1 if self.fixed else None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, *counter = inputs
        check_draw("a noisy rectifier", self.stream, *counter)
        return (TensorSpec(x.shape, x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, *counter = inputs
        return ReLU().reference(_passed(x) * (1 + self._numbers(x, *counter)))

    @quiet
    def with_noise_of(self, of: np.ndarray, x: np.ndarray, *counter: np.ndarray) -> np.ndarray:
        """y of x, but with the noise of another input of x's shape.

        At ``of`` = x the derivative of this function is what ``gradient`` gives.
        """
        noise = _passed(of) * self._numbers(x, *counter)
        return ReLU().reference(_passed(x) + noise)[0]

    def _numbers(self, x: np.ndarray, counter: np.ndarray = _FIXED) -> np.ndarray:
        seed, step = (int(value) for value in counter)
        return normal(seed, self.stream, x.shape, step=step).astype(x.dtype)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        (dx,) = scope.add(ReLUGrad(), dy, scope.node.outputs[0])
        return [dx, *(None for _ in scope.node.inputs[1:])]

    def inference(self) -> Op:
        return replace(self, fixed=True)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Two an element; drawing is integer work and a polynomial of its own."""
        return 2 * inputs[0].size


def _passed(x: np.ndarray) -> np.ndarray:
    return ReLU().reference(x)[0]

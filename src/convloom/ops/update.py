"""Update rules as ops: SGD, AdamW, and the gradient norm they may clip by.

Rates come from the ``hyper`` control at run time (slots in control.py); an op's attributes hold
only what is fixed for a network: one multiplier of weight decay and of learning rate for each
parameter. Every reference rounds the rates to the parameters' dtype and computes in it.
Sources: torch.optim.SGD, torch.optim.AdamW, torch.nn.utils.clip_grad_norm_.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import Op, quiet
from convloom.ops.control import HYPER, HYPER_SPEC

#: What clip_grad_norm_ adds to the norm it divides by.
CLIP_EPS = 1e-6


@dataclass(frozen=True)
class GradientNorm(Op):
    """Inputs g_1..g_n, any shapes; output norm, float64 (1,): the 2-norm of all of them.

    Squares are summed in float64.
    """

    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec((1,), "float64"),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        squares = [np.square(g.astype(np.float64)).sum() for g in inputs]
        return (np.sqrt(np.sum(squares, dtype=np.float64)).reshape(1),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 2 * sum(g.size for g in inputs)


@dataclass(frozen=True)
class _Update(Op):
    """What the update rules share: inputs (hyper[, norm], p.., g.., states..), updated in place.

    Attributes:
        decay: for each parameter, what multiplies ``weight_decay``.
        rate: for each parameter, what multiplies ``lr``.
        clip: whether gradients are scaled by min(1, max_norm / (norm + 1e-6)) first.
    """

    differentiable: ClassVar[bool] = False
    states: ClassVar[int] = 1

    decay: tuple[float, ...]
    rate: tuple[float, ...]
    clip: bool = False

    @property
    def count(self) -> int:
        """Number of parameters."""
        return len(self.decay)

    @property
    def first(self) -> int:
        """Index of the first parameter among the inputs."""
        return 2 if self.clip else 1

    @property
    def arity_out(self) -> int:
        return (1 + self.states) * self.count

    @property
    def inplace(self) -> Mapping[int, int]:
        pairs = {i: self.first + i for i in range(self.count)}
        for i in range(self.count, self.arity_out):
            pairs[i] = self.first + self.count + i  # the gradients lie between
        return pairs

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        expected = self.first + (2 + self.states) * self.count
        if len(self.rate) != self.count or len(inputs) != expected:
            raise ShapeError(
                f"{self.name} of {self.count} parameters takes {self.count} rates and {expected} "
                f"tensors, it got {len(self.rate)} and {len(inputs)}"
            )
        if inputs[0].shape != HYPER_SPEC.shape:
            raise ShapeError(f"hyper must have shape {HYPER_SPEC.shape}, it is {inputs[0].shape}")
        groups = [inputs[i : i + self.count] for i in range(self.first, expected, self.count or 1)]
        for i in range(self.count):
            shapes = [group[i].shape for group in groups]
            if any(shape != shapes[0] for shape in shapes):
                raise ShapeError(
                    f"parameter {i} of the update, its gradient and states must have one shape, "
                    f"they are {shapes}"
                )
        kept = [groups[0], *groups[2:]] if groups else []
        return tuple(TensorSpec(spec.shape, spec.dtype) for group in kept for spec in group)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        hyper = dict(zip(HYPER, (float(value) for value in inputs[0]), strict=True))
        scale = self._scale(hyper, float(inputs[1][0])) if self.clip else None
        updated = []
        for i in range(self.count):
            at = range(self.first + i, len(inputs), self.count)
            p, g, *states = (inputs[j] for j in at)
            if scale is not None:
                g = g * p.dtype.type(scale)
            mine = {
                **hyper,
                "lr": hyper["lr"] * self.rate[i],
                "weight_decay": hyper["weight_decay"] * self.decay[i],
            }
            updated.append(self.step(mine, p, g, *states))
        return tuple(made[j] for j in range(1 + self.states) for made in updated)

    @abstractmethod
    def step(
        self, hyper: Mapping[str, float], p: np.ndarray, g: np.ndarray, *states: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """New parameter and states of one parameter; ``hyper`` has its multipliers applied."""

    @property
    @abstractmethod
    def work(self) -> int:
        """Floating-point operations an element, clipping apart."""

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        elements = sum(spec.size for spec in outputs[: self.count])
        return (self.work + self.clip) * elements

    @staticmethod
    def _scale(hyper: Mapping[str, float], norm: float) -> float:
        # np.minimum, unlike min, passes a NaN norm on to the gradients, as PyTorch does.
        return float(np.minimum(1.0, np.divide(hyper["max_norm"], norm + CLIP_EPS)))


@dataclass(frozen=True)
class SGD(_Update):
    """Stochastic gradient descent with momentum: torch.optim.SGD with dampening 0.

        g += weight_decay * p;  v = momentum * v + g;  p -= lr * (v, or g + momentum * v)

    Inputs (hyper[, norm], p_1..p_n, g_1..g_n, v_1..v_n); outputs (p_1'..p_n', v_1'..v_n'). States
    start at 0.
    """

    nesterov: bool = False

    @property
    def work(self) -> int:
        return 8 if self.nesterov else 6

    def step(
        self, hyper: Mapping[str, float], p: np.ndarray, g: np.ndarray, *states: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        real = p.dtype.type
        momentum = real(hyper["momentum"])
        if hyper["weight_decay"]:
            g = g + real(hyper["weight_decay"]) * p
        v = momentum * states[0] + g
        direction = g + momentum * v if self.nesterov else v
        return p - real(hyper["lr"]) * direction, v


@dataclass(frozen=True)
class AdamW(_Update):
    """Adam with decoupled weight decay: torch.optim.AdamW.

        p *= 1 - lr * weight_decay;  m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2
        p -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)

    Inputs (hyper[, norm], p.., g.., m.., v..); outputs (p'.., m'.., v'..). States start at 0.
    Source: Loshchilov and Hutter (arXiv 1711.05101).
    """

    states: ClassVar[int] = 2

    @property
    def work(self) -> int:
        return 14

    def step(
        self, hyper: Mapping[str, float], p: np.ndarray, g: np.ndarray, *states: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        real = p.dtype.type
        m = states[0] + real(1 - hyper["beta1"]) * (g - states[0])
        v = real(hyper["beta2"]) * states[1] + real(1 - hyper["beta2"]) * (g * g)
        root = np.sqrt(v) / real(np.sqrt(hyper["bias2"])) + real(hyper["eps"])
        kept = p * real(1 - hyper["lr"] * hyper["weight_decay"])
        return kept - real(np.divide(hyper["lr"], hyper["bias1"])) * (m / root), m, v

"""The update rule of a parameter file as an optimiser: each tensor has rates of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from convloom import random
from convloom.compiler.rewrite import without_dead_code
from convloom.convnet.modules.tree import DIVISORS
from convloom.convnet.net import Net
from convloom.convnet.rules import LEAST_FLOOR, BiasRule, WeightRule
from convloom.convnet.schedules import CONSTANT, RateSchedule, parse_schedule
from convloom.ir import Role, ShapeError
from convloom.ops import FilterLimit, VelocitySGD
from convloom.ops.base import Op
from convloom.ops.velocity import RATES, SUMMING
from convloom.training import compile
from convloom.training.optim import Optimizer, OptimizerError, from_json

_NOISE = "convnet-rate-noise"

#: (centred, low, high), as ops/velocity.py explains them.
Limit = tuple[bool, float, float]


@dataclass(frozen=True)
class TensorRule:
    """How one parameter learns; eps 0 freezes it.

    Attributes:
        limits: (centred, low, high) of each filter's size over its number of weights, in the order
            in which they are kept; one alone, or None, as older runs hold them, will do too.
        divisors: the tensor of a treefc's leaves below each node, which divide the node's eps and
            its decay both; None for others.
        super_eps: where positive, gradients are divided by their own size, which is averaged with
            ``momentum``; the velocity's is then 0.9, and there is no decay.
    """

    name: str
    eps: float
    momentum: float
    decay: float
    schedule: str = "default"
    limits: tuple[Limit, ...] = ()
    divisors: str | None = None
    super_eps: float = 0.0

    def __post_init__(self) -> None:
        given: Any = self.limits or ()
        several = (given,) if given and isinstance(given[0], bool) else given
        object.__setattr__(self, "limits", tuple(tuple(limit) for limit in several))

    @property
    def adaptive(self) -> bool:
        """Whether the tensor learns, and by gradients that are divided by their size."""
        return self.eps > 0 and self.super_eps > 0

    @property
    def bounds(self) -> tuple[FilterLimit, ...]:
        """The limits; none where the tensor is frozen."""
        return tuple(FilterLimit(*limit) for limit in self.limits) if self.eps else ()

    def in_words(self) -> dict[str, Any]:
        """Its values, limits and superEps as a parameter file says them."""
        words = [
            f"wcNormMin={low:g} wcNormMax={high:g}" if centred else f"wball={high:g}"
            for centred, low, high in self.limits
        ]
        plain = {**vars(self), "limit": " ".join(words) or "none", "superEps": self.super_eps}
        return {key: value for key, value in plain.items() if key not in ("limits", "super_eps")}


@dataclass(frozen=True)
class Velocity(Optimizer):
    """v = momentum v - eps (g + decay w); w = w + v, then limits: cuda-convnet's rule.

    ops/velocity.py has the formulas.

    Args:
        rules: one a parameter.
        steps: minibatches of the whole training, over which schedules stretch.
        constant: minibatches over which a scheduled rate stays the same: those of one batch file.
        files: minibatches of each batch file of an epoch, where they are not all as many; schedules
            then count files.
        seed: of the noise that a schedule may put on a rate.
        every: minibatches, the mean of whose gradients makes an update; the rates are those of the
            last. They are counted through epochs, and those that are no full number at the end of
            the training update nothing.
        lr: multiplies every eps.

    Raises:
        OptimizerError: a value out of its range.
    """

    kind: ClassVar[str] = "Velocity"
    states: ClassVar[tuple[str, ...]] = ("velocity",)
    momentum_slot: ClassVar[str] = "momentum"

    rules: tuple[TensorRule, ...] = ()
    steps: int = 1
    constant: int = 1
    files: Sequence[int] = ()
    seed: int = 0
    every: int = 1
    lr: float = 1.0
    weight_decay: float = 0.0
    exclude: tuple[str, ...] = ()
    _schedules: tuple[RateSchedule, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_shared()
        rules = (r if isinstance(r, TensorRule) else TensorRule(*r) for r in self.rules)
        object.__setattr__(self, "rules", tuple(rules))
        for name, least in (("steps", 1), ("constant", 1), ("seed", 0), ("every", 1)):
            allowed = f"a whole number of at least {least}"
            self._require(name, _is_count(getattr(self, name), least), allowed)
        counts = isinstance(self.files, Sequence) and all(map(_is_count, self.files))
        self._require("files", counts, "whole numbers of at least 1")
        object.__setattr__(self, "files", tuple(self.files))
        schedules = tuple(parse_schedule(rule.schedule) for rule in self.rules)
        object.__setattr__(self, "_schedules", schedules)

    @property
    def slots(self) -> tuple[str, ...]:
        names = [rule.name for rule in self.rules]
        rates = tuple(f"{rate}:{name}" for rate in RATES for name in names)
        return rates + (SUMMING if self.every > 1 else ())

    def kept(self, names: Sequence[str]) -> tuple[str, ...]:
        rules = {rule.name: rule for rule in self.rules}
        adaptive = [name for name in names if name in rules and rules[name].adaptive]
        of = {"grad_mean": adaptive, "grad_square": adaptive}
        if self.every > 1:
            of["grad_sum"] = list(names)
        more = (f"{name}.{suffix}" for suffix, own in of.items() for name in own)
        return (*super().kept(names), *more)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(rule.divisors for rule in self.rules if rule.divisors is not None)

    def advice(self, lr: float) -> str:
        rates = "rates of the parameter file" if lr == 1 else f"rates {lr:.4g} times its file's"
        unsafe = any(rule.adaptive and rule.super_eps <= LEAST_FLOOR for rule in self.rules)
        floor = f"give superEps above {LEAST_FLOOR:g}, " if unsafe else ""
        return f"{rates}: {floor}lower epsW and epsB, limit weights by wball"

    def hyper(
        self, step: int, *, lr: float | None = None, momentum: float | None = None
    ) -> dict[str, float]:
        """The rates of the update that a minibatch makes or belongs to; a frozen tensor has none,
        and its velocity ends.

        Args:
            step: minibatches before it.

        Raises:
            OptimizerError: a schedule that cycles momentum, of which every tensor has its own.
        """
        if momentum is not None:
            raise OptimizerError("Velocity: momentum cannot be scheduled, each tensor has its own")
        factor = self.lr if lr is None else lr
        progress = self._progress(step)
        found = {}
        for rule, schedule in zip(self.rules, self._schedules, strict=True):
            rate = factor * schedule.rate(rule.eps, progress)
            if schedule.noise:
                draw = random.normal(self.seed, f"{_NOISE}:{rule.name}", (1,), step=step)[0]
                rate *= 1 + schedule.noise * abs(float(draw))
            found[f"eps:{rule.name}"] = rate
            found[f"momentum:{rule.name}"] = rule.momentum if rule.eps else 0.0
            found[f"decay:{rule.name}"] = rule.decay
        if self.every > 1:
            found["keep"] = float(step % self.every > 0)
            found["move"] = float((step + 1) % self.every == 0)
        return found

    def _progress(self, step: int) -> float:
        """The share of the training that the batch files before a step's own make up."""
        if not self.files:
            return step // self.constant * self.constant / self.steps
        ends = list(accumulate(self.files))
        epoch, rest = divmod(step, ends[-1])
        epochs = self.steps / ends[-1]
        return (epoch + bisect_right(ends, rest) / len(ends)) / epochs

    def op(self, names: Sequence[str], clip: bool = False) -> Op:
        known = tuple(rule.name for rule in self.rules)
        if tuple(names) != known:
            raise OptimizerError(
                f"Velocity has rules for {', '.join(known)}; the network learns {', '.join(names)}"
            )
        if clip:
            raise OptimizerError("Velocity: gradients cannot be clipped by their norm; use limits")
        divided = (i for i, rule in enumerate(self.rules) if rule.divisors is not None)
        floors = ((i, one.super_eps) for i, one in enumerate(self.rules) if one.adaptive)
        limits = tuple(rule.bounds for rule in self.rules)
        return VelocitySGD(limits, tuple(divided), tuple(floors), self.every)

    def changes_from(self, saved: Mapping[str, Any]) -> list[str] | None:
        """What an edited parameter file changes, for every tensor and rate that it changes."""
        now, then = self.to_json(), {"every": 1, **saved}
        if any(then.get(key) != now[key] for key in ("kind", "every")):
            return None
        found = [
            f"{key} was {then.get(key)}, it is {now[key]} from now on"
            for key in now
            if key != "rules" and then.get(key) != now[key]
        ]
        rules = _saved_rules(then)
        for rule in self.rules:
            old = rules.get(rule.name)
            if old is None:
                found.append(f"{rule.name} learns from now on, from velocity 0")
                continue
            for name, value in rule.in_words().items():
                if (before := old.in_words()[name]) != value:
                    found.append(f"{rule.name}: {name} was {before}, it is {value} from now on")
        learning = {rule.name for rule in self.rules}
        ended = (name for name in rules if name not in learning)
        return found + [f"{name} does not learn from now on; its velocity ends" for name in ended]

    def differing(self, saved: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        now, then = _states(self), _states(from_json(saved))
        begun = tuple(name for name in now if name not in then)
        return begun, tuple(name for name in then if name not in now)

    def to_json(self) -> dict[str, Any]:
        plain = super().to_json()
        rules = [list(vars(rule).values()) for rule in self.rules]
        return {key: value for key, value in plain.items() if key[0] != "_"} | {"rules": rules}


def _states(optimizer: Optimizer) -> tuple[str, ...]:
    """The states for all parameters that there are rules for."""
    assert isinstance(optimizer, Velocity)
    return optimizer.kept([rule.name for rule in optimizer.rules])


def _saved_rules(saved: Mapping[str, Any]) -> dict[str, TensorRule]:
    return {rule[0]: TensorRule(*rule) for rule in saved.get("rules", [])}


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def optimizer_of(
    net: Net,
    *,
    steps: int = 1,
    constant: int = 1,
    files: Sequence[int] = (),
    seed: int = 0,
    every: int = 1,
) -> Velocity:
    """The rule that a network's parameter file asks for.

    Args:
        steps: minibatches of the whole training.
        constant: minibatches of one batch file.
        files: minibatches of each batch file of an epoch, in place of ``constant``; see
            ``updates``.
        every: minibatches whose gradients make one update, their mean.

    Raises:
        OptimizerError: rates by which nothing, or not all that is shared, can learn.
    """
    _check_sharing(net)
    rules = tuple(_rule(net, name) for name in _learning(net))
    return Velocity(rules, steps=steps, constant=constant, files=files, seed=seed, every=every)


def _check_sharing(net: Net) -> None:
    """Weights of several inputs learn by their owner's rule, whose rate must do for all of them.

    A conv added its gradient to the owner's as it was, other layers times their own rate.

    Raises:
        OptimizerError: rates by which one sum of gradients cannot learn.
    """
    for (name, i), (owner, j) in net.owners().items():
        own, theirs = (net.rules.layers[n].weights[k] for n, k in ((name, i), (owner, j)))
        if not theirs.eps:
            continue
        frozen = not own.eps
        other = (own.eps, own.schedule) != (theirs.eps, theirs.schedule)
        if frozen or (other and net.network[name].type != "conv"):
            raise OptimizerError(
                f"[{name}] takes the weights of [{owner}], so its epsW={own.eps:g} and schedW must "
                f"be those there, epsW={theirs.eps:g} and schedW={theirs.schedule}"
            )


def _learning(net: Net) -> list[str]:
    """The parameters that a gradient reaches: those above a cost whose coeff is not 0."""
    graph = net.trace(net.images)
    live = [graph.outputs[term.output] for term in net.cost.loss.terms if term.coefficient]
    if not live:
        names = ", ".join(f"[{term.name}]" for term in net.cost.loss.terms)
        raise OptimizerError(f"{net.rules.file}: coeff is 0 for {names}, so nothing can be learned")
    above = without_dead_code(graph.replacing(outputs=tuple(live), updates={}))
    read = {name for node in above.nodes for name in node.inputs}
    return [name for name in graph.named(Role.PARAMETER) if name in read]


def _rule(net: Net, name: str) -> TensorRule:
    module, kind, *number = name.split(".")
    layer = next(one for one in net.network.layers if one.module == module)
    rule = net.rules.layers[layer.name]
    if kind == "biases":
        assert isinstance(rule.biases, BiasRule)
        biases = rule.biases
        return TensorRule(name, biases.eps, biases.momentum, 0.0, str(biases.schedule))
    weights = rule.weights[int(number[0])]
    tree = layer.type == "treefc"
    schedule = str(CONSTANT if tree else weights.schedule)
    return TensorRule(
        name,
        weights.eps,
        weights.momentum,
        weights.decay,
        schedule,
        _limits(weights),
        f"{module}.{DIVISORS}" if tree else None,
        weights.super_eps,
    )


def _limits(rule: WeightRule) -> tuple[Limit, ...]:
    """wcNormMin and wcNormMax, then wball: the order in which the original kept them."""
    limits: list[Limit] = []
    if rule.norm_max > 0:
        limits.append((True, rule.norm_min, rule.norm_max))
    if rule.ball > 0:
        # wball times the fan-in bounds the length, so the length over the fan-in is at most wball.
        limits.append((False, 0.0, rule.ball))
    return tuple(limits)


def train_step(net: Net, data: np.ndarray, labels: np.ndarray, *, device: str = "auto") -> float:
    """Apply the network's own update rule once, from velocity 0; the loss before it.

    That is the mean cost, of several their sum, each times its ``coeff``.

    Args:
        data: images (N, C, H, W), float.
        labels: what costs compare with: class numbers (N,), or rows (N, outputs).

    Raises:
        ConvloomError: data that does not fit the network.
    """
    data = np.asarray(data)
    if data.dtype.kind not in "fiub" or not data.ndim:
        raise ShapeError(f"data must be numbers (N, C, H, W), they are {data.dtype} {data.shape}")
    step = compile(
        net,
        net.cost.loss,
        optimizer_of(net),
        batch_size=len(data),
        input_shape=net.images,
        device=device,
    )
    return step(np.asarray(data, np.float32), labels)

"""Losses: plain descriptions, from which the ops of a step are made.

Each says which targets it takes: ``index``, class numbers (N,); ``probability``, a distribution of
classes (N, K); ``value``, numbers of the output's own shape. A loss of values also takes class
numbers where the output is (N, K): the targets then are rows of 0 with a 1 at the class. A
``LossSum`` is several of them, each of an output of its own where the network has several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from convloom.ir import ShapeError
from convloom.nn.arguments import ArgumentError, number, whole
from convloom.ops import Op, SoftmaxCrossEntropy, from_json, to_json
from convloom.ops import PointwiseLoss as _Pointwise
from convloom.ops.pointwise_loss import LOSSES, REDUCTIONS


def _only_defaults(loss: Any, **defaults: Any) -> None:
    """Raises ArgumentError for an option of PyTorch's that has another value than its default."""
    for name, default in defaults.items():
        value = getattr(loss, name)
        if type(value) is not type(default) or value != default:
            raise ArgumentError(
                f"{type(loss).__name__}: {name}={value!r} is not supported, only {default!r} is"
            )


def _checked_reduction(loss: Any, allowed: tuple[str, ...] = ("mean", "sum")) -> None:
    if loss.reduction not in allowed:
        names = " or ".join(map(repr, allowed))
        raise ArgumentError(
            f"{type(loss).__name__}: reduction must be {names}, it is {loss.reduction!r}"
        )


@dataclass(frozen=True)
class CrossEntropyLoss:
    """Mean softmax cross-entropy of logits (N, K), as torch.nn.CrossEntropyLoss.

    Targets are class numbers (N,) or probabilities (N, K). Class weights, ``ignore_index`` and
    other reductions than ``mean`` are not supported.

    Args:
        label_smoothing: share e of the target spread over all classes, (1 - e) t + e / K.

    Raises:
        ShapeError: a label_smoothing outside [0, 1].
        ArgumentError: an option of PyTorch that convloom does not have.
    """

    targets: ClassVar[tuple[str, ...]] = ("index", "probability")

    weight: Any = None
    size_average: Any = None
    ignore_index: int = -100
    reduce: Any = None
    reduction: str = "mean"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _only_defaults(
            self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"
        )
        smoothing = self.label_smoothing
        if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)):
            raise ShapeError(
                f"CrossEntropyLoss: label_smoothing must be a number, not {smoothing!r}"
            )
        if not 0.0 <= smoothing <= 1.0:
            raise ShapeError(
                f"CrossEntropyLoss: label_smoothing must be in [0, 1], it is {smoothing}"
            )

    def op(self, target: str = "index") -> SoftmaxCrossEntropy:
        """The op for targets of a kind: ``index`` (class numbers) or ``probability``."""
        return SoftmaxCrossEntropy(float(self.label_smoothing), target)

    def __repr__(self) -> str:
        return f"CrossEntropyLoss(label_smoothing={self.label_smoothing})"


class _ValueLoss:
    """A loss that compares each element of the output with a target of its own."""

    targets: ClassVar[tuple[str, ...]] = ("value",)


@dataclass(frozen=True)
class PointwiseLoss(_ValueLoss):
    """Any loss of the family in ``ops/pointwise_loss.py``, by kind, reduction and parameter.

    What PyTorch has no loss for: cuda-convnet's ``cost.rflickr`` is
    ``PointwiseLoss("log_square", "batchmean")``.
    """

    kind: str
    reduction: str = "mean"
    a: float = 1.0

    def __post_init__(self) -> None:
        _checked_reduction(self, REDUCTIONS)
        if self.kind not in LOSSES:
            known = ", ".join(LOSSES)
            raise ArgumentError(f"PointwiseLoss: unknown kind {self.kind!r}; known are {known}")
        if number(self.a, "PointwiseLoss: a") < 0:
            raise ShapeError(f"PointwiseLoss: a must be at least 0, it is {self.a}")

    def op(self, target: str = "value") -> _Pointwise:
        """The op that compares the output with numbers of its shape."""
        return _Pointwise(self.kind, self.reduction, float(self.a))


@dataclass(frozen=True)
class BCEWithLogitsLoss(_ValueLoss):
    """Binary cross-entropy of logits, as torch.nn.BCEWithLogitsLoss: one question an element.

    Args:
        pos_weight: factor of the loss of targets that are 1; one number for all elements.
    """

    weight: Any = None
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"
    pos_weight: float | None = None

    def __post_init__(self) -> None:
        _only_defaults(self, weight=None, size_average=None, reduce=None)
        _checked_reduction(self)
        if self.pos_weight is not None and number(self.pos_weight, "pos_weight") < 0:
            raise ShapeError(f"pos_weight must be at least 0, it is {self.pos_weight}")

    def op(self, target: str = "value") -> _Pointwise:
        """The op that compares logits with numbers from 0 to 1."""
        weight = 1.0 if self.pos_weight is None else float(self.pos_weight)
        return _Pointwise("bce_logits", self.reduction, weight)


@dataclass(frozen=True)
class BCELoss(_ValueLoss):
    """Binary cross-entropy of probabilities, as torch.nn.BCELoss; logarithms end at -100."""

    weight: Any = None
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        _only_defaults(self, weight=None, size_average=None, reduce=None)
        _checked_reduction(self)

    def op(self, target: str = "value") -> _Pointwise:
        """The op that compares probabilities with numbers from 0 to 1."""
        return _Pointwise("bce", self.reduction, 100.0)


@dataclass(frozen=True)
class MultiLabelSoftMarginLoss(_ValueLoss):
    """Mean binary cross-entropy of logits (N, K), as torch.nn.MultiLabelSoftMarginLoss."""

    weight: Any = None
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        _only_defaults(self, weight=None, size_average=None, reduce=None, reduction="mean")

    def op(self, target: str = "value") -> _Pointwise:
        """The op that compares logits with rows of 0 and 1."""
        return _Pointwise("bce_logits", "mean", 1.0)


@dataclass(frozen=True)
class MSELoss(_ValueLoss):
    """Squared differences, as torch.nn.MSELoss."""

    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        _only_defaults(self, size_average=None, reduce=None)
        _checked_reduction(self)

    def op(self, target: str = "value") -> _Pointwise:
        """The op that compares the output with numbers of its shape."""
        return _Pointwise("mse", self.reduction)


@dataclass(frozen=True)
class NLLLoss(_ValueLoss):
    """Negative log-likelihood of log-probabilities (N, K), as torch.nn.NLLLoss.

    Beside class numbers (N,) it takes distributions (N, K). Class weights and ``ignore_index`` are
    not supported.
    """

    weight: Any = None
    size_average: Any = None
    ignore_index: int = -100
    reduce: Any = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        _only_defaults(self, weight=None, size_average=None, ignore_index=-100, reduce=None)
        _checked_reduction(self)

    def op(self, target: str = "value") -> _Pointwise:
        """The op that adds up the log-probabilities of the targets."""
        return _Pointwise("nll", "batchmean" if self.reduction == "mean" else "sum")


@dataclass(frozen=True)
class LossTerm:
    """One loss of a sum.

    Args:
        name: what reports call it.
        loss: any loss above.
        coefficient: what it is multiplied by in the sum; 0 stops its gradient, and it is reported
            all the same.
        output: number of the network's output that it reads; 0 is what ``forward`` returns, the
            others are those given to ``also`` of the tracer.
        top: k, to report the shares of samples that are wrong at top 1 and at top k as well; for a
            loss of class numbers.

    Raises:
        ShapeError: a number out of its range.
    """

    name: str
    loss: Any
    coefficient: float = 1.0
    output: int = 0
    top: int | None = None

    def __post_init__(self) -> None:
        number(self.coefficient, f"the coefficient of {self.name}")
        if self.top is not None:
            whole(self.top, f"the k of {self.name}'s error")

    @property
    def reads_target(self) -> bool:
        """Whether it compares the output with anything."""
        return bool(getattr(self.op, "targets", 1))

    @property
    def op(self) -> Op:
        """The op for targets of the first kind that it takes."""
        made: Op = self.loss.op(self.loss.targets[0])
        return made

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the numbers that are reported, without the coefficient."""
        if self.top is None:
            return (self.name,)
        return self.name, f"{self.name}.top1_error", f"{self.name}.top{self.top}_error"


@dataclass(frozen=True)
class LossSum:
    """The sum of losses, each times its coefficient; every one is reported by its name too.

    Args:
        terms: at least one, of different names.

    Raises:
        ArgumentError: no term, or two of one name.
    """

    terms: tuple[LossTerm, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        names = [term.name for term in self.terms]
        if not names or len(set(names)) < len(names):
            raise ArgumentError(f"a LossSum needs terms of different names, not {names}")

    @property
    def targets(self) -> tuple[str, ...]:
        """The kinds of target that all its terms take; class numbers may stand for values."""
        kinds = [term.loss.targets for term in self.terms if term.reads_target]
        if not any("index" in kind for kind in kinds):
            return ("value",)
        return ("index", "probability") if all("probability" in k for k in kinds) else ("index",)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the numbers that a step reports beside the sum, in their order."""
        return tuple(name for term in self.terms for name in term.figures)

    def changes_from(self, saved: Any) -> list[str] | None:
        """What differs from a saved description, a line each, where a run may go on nevertheless.

        Coefficients and the k of top-k errors may differ; None where anything else does.
        """
        try:
            then = LossSum.from_json(saved)
        except (KeyError, TypeError, ValueError):
            return None
        if [_fixed(term) for term in then.terms] != [_fixed(term) for term in self.terms]:
            return None
        return [
            f"[{new.name}] {word} was {before:g}, it is {now:g} from now on"
            for old, new in zip(then.terms, self.terms, strict=True)
            for word, before, now in (
                ("coeff", old.coefficient, new.coefficient),
                ("topk", old.top or 0, new.top or 0),
            )
            if before != now
        ]

    def to_json(self) -> dict[str, Any]:
        """The sum as plain data; ``from_json`` is its inverse."""
        return {"terms": [{**vars(term), "loss": to_json(term.op)} for term in self.terms]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LossSum:
        """The sum that ``to_json`` described.

        Raises:
            ValueError, KeyError, TypeError: data that describe none.
        """
        return cls(tuple(LossTerm(**{**t, "loss": _loss_of(t["loss"])}) for t in data["terms"]))


def _fixed(term: LossTerm) -> tuple[Any, ...]:
    """What must stay the same while a network is trained."""
    return term.name, term.op, term.output, term.top is None


def _loss_of(data: Mapping[str, Any]) -> CrossEntropyLoss | PointwiseLoss:
    """The loss whose op was saved."""
    op = from_json(data)
    if isinstance(op, SoftmaxCrossEntropy):
        return CrossEntropyLoss(label_smoothing=op.label_smoothing)
    if isinstance(op, _Pointwise):
        return PointwiseLoss(op.kind, op.reduction, op.a)
    raise ValueError(f"{op.name} is no loss")

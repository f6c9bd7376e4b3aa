"""Tests by several views of each image, whose predictions are averaged.

The output of cuda-convnet's softmax layers was averaged over views, and log-probability and errors
are those of the mean; costs of another kind kept the last view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from convloom.nn import CrossEntropyLoss, LossSum, LossTerm
from convloom.ops import TopKError
from convloom.ops.precision import FP32
from convloom.training.engine import Engine
from convloom.training.metrics import Evaluation, Totals, measured
from convloom.training.optim import SGD
from convloom.training.prediction import normalised, predict, softmax
from convloom.training.trainer import Trainer, TrainerError

if TYPE_CHECKING:
    from convloom.nn import Module

#: Images (n, C, H, W), and their views as a network takes them, each (n, C, height, width).
Views = Callable[[np.ndarray], Sequence[np.ndarray]]
_Maker = Callable[[np.ndarray], np.ndarray]
_USUAL = CrossEntropyLoss()


class Images(Protocol):
    """A data set in memory, as ``cl.data.load`` returns one."""

    @property
    def name(self) -> str: ...

    @property
    def images(self) -> np.ndarray: ...

    @property
    def labels(self) -> np.ndarray: ...


def multiview(
    model: Module,
    dataset: Images,
    views: Views,
    *,
    loss: Any = None,
    batch_size: int = 256,
    device: str = "auto",
    precision: str = FP32,
) -> Evaluation:
    """``{"loss", "accuracy", "top5", "n"}`` of predictions averaged over views of each image.

    Args:
        dataset: images as they are, larger than the network's input; pixels are normalised as in
            training, a mean image's middle is subtracted from every view.
        views: such as ``lambda images: cl.data.ten_views(images, 224)``.
        loss: of the network, cross-entropy by default; any other, and any other in a sum of
            several, is measured on the last view alone. A sum's numbers are ``costs``.

    Raises:
        TrainerError: a data set without images.
    """
    if not len(dataset.images):
        raise TrainerError(f"the data set {dataset.name} has no samples")
    terms = loss.terms if isinstance(loss, LossSum) else (LossTerm("loss", loss or _USUAL),)
    mean = [term for term in terms if isinstance(term.loss, CrossEntropyLoss)]
    where: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    last = None if len(mean) == len(terms) else _last_view(model, dataset, views, loss, where)
    if last is not None and not mean:
        return last
    figures = _of_means(model, dataset, views, mean, where)
    costs = {**({} if last is None else last.get("costs", {})), **figures.pop("costs")}
    if isinstance(loss, LossSum):
        figures["costs"] = {name: costs[name] for name in loss.figures}
        figures["loss"] = sum(term.coefficient * costs[term.name] for term in terms)
    return figures


def averaged(make: _Maker, images: np.ndarray, views: Views | None) -> np.ndarray:
    """The mean of what is made of each view of images, (n, …); of the images without views."""
    if views is None:
        return make(images)
    mean: np.ndarray = np.mean([make(view) for view in views(images)], axis=0)
    return mean


def _of_means(
    model: Module,
    dataset: Images,
    views: Views,
    terms: Sequence[LossTerm],
    where: Mapping[str, Any],
) -> Evaluation:
    """Figures of the mean probabilities, the terms' among them; right answers are the first's."""
    makers = {term.output: _probabilities(model, term.output, where) for term in terms}
    totals, size = Totals(), where["batch_size"]
    for start in range(0, len(dataset.images), size):
        images, labels = (part[start : start + size] for part in (dataset.images, dataset.labels))
        means = {output: averaged(make, images, views) for output, make in makers.items()}
        costs: dict[str, float] = {}
        for term in terms:
            found = [measured(means[term.output], labels).loss]
            if term.top is not None:
                scores = means[term.output].astype(np.float64)
                found += TopKError(term.top).reference(scores, labels)[0].tolist()
            costs |= dict(zip(term.figures, found, strict=True))
        totals.add(replace(measured(means[terms[0].output], labels), costs=costs))
    return totals.means()


def _probabilities(model: Module, output: int, where: Mapping[str, Any]) -> _Maker:
    """What makes class probabilities of views, of one of the network's outputs."""
    if output == 0:
        return lambda view: predict(model, view, **where)
    assert model.input_shape is not None
    shape = (model.input_shape[0], model.input_shape[1], model.input_shape[2])
    tensor = model.trace(shape, 1).outputs[output]
    engine = Engine(
        model,
        input_shape=shape,
        device=where["device"],
        precision=where["precision"],
        layer=tensor,
    )
    return lambda view: softmax(engine.predict(normalised(model, view)))


def _last_view(
    model: Module, dataset: Any, views: Views, loss: Any, where: Mapping[str, Any]
) -> Evaluation:
    last = np.ascontiguousarray(views(dataset.images)[-1])
    mean, std = model.normalization or ((), ())
    seen = replace(dataset, images=last, mean=mean, std=std, mean_image=model.mean_image)
    return Trainer(model, SGD(), loss, **where).evaluate(seen)

"""Tests by several views of each image, whose predictions are averaged.

The output of cuda-convnet's softmax layers was averaged over views, and log-probability and errors
are those of the mean; costs of another kind kept the last view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from convloom.nn import CrossEntropyLoss
from convloom.ops.precision import FP32
from convloom.training.metrics import Evaluation, Totals, measured
from convloom.training.optim import SGD
from convloom.training.prediction import predict
from convloom.training.trainer import Trainer, TrainerError

if TYPE_CHECKING:
    from convloom.nn import Module

#: Images (n, C, H, W), and their views as a network takes them, each (n, C, height, width).
Views = Callable[[np.ndarray], Sequence[np.ndarray]]


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
        loss: of the network; by any but cross-entropy it is the last view alone that is measured.

    Raises:
        TrainerError: a data set without images.
    """
    if not len(dataset.images):
        raise TrainerError(f"the data set {dataset.name} has no samples")
    if loss is not None and not isinstance(loss, CrossEntropyLoss):
        return _last_view(model, dataset, views, loss, batch_size, device, precision)
    totals = Totals()
    for start in range(0, len(dataset.images), batch_size):
        part = slice(start, start + batch_size)
        made = averaged(
            lambda view: predict(
                model, view, batch_size=batch_size, device=device, precision=precision
            ),
            dataset.images[part],
            views,
        )
        totals.add(measured(made, dataset.labels[part]))
    return totals.means()


def averaged(
    make: Callable[[np.ndarray], np.ndarray], images: np.ndarray, views: Views | None
) -> np.ndarray:
    """The mean of what is made of each view of images, (n, …); of the images without views."""
    if views is None:
        return make(images)
    mean: np.ndarray = np.mean([make(view) for view in views(images)], axis=0)
    return mean


def _last_view(
    model: Module,
    dataset: Any,
    views: Views,
    loss: Any,
    batch_size: int,
    device: str,
    precision: str,
) -> Evaluation:
    last = np.ascontiguousarray(views(dataset.images)[-1])
    mean, std = model.normalization or ((), ())
    seen = replace(dataset, images=last, mean=mean, std=std, mean_image=model.mean_image)
    trainer = Trainer(model, SGD(), loss, batch_size=batch_size, device=device, precision=precision)
    return trainer.evaluate(seen)

"""Class probabilities of images, with the normalisation the network was trained with."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary, proxy

import numpy as np

from convloom.ir import ConvloomError, Graph, ShapeError
from convloom.nn.arguments import whole
from convloom.normalise import normalise
from convloom.ops import Activation, Softmax
from convloom.ops.precision import FP32
from convloom.training.engine import Engine

if TYPE_CHECKING:
    from convloom.nn import Module


#: Under this name a network keeps the function that makes probabilities of its output, where that
#: is not softmax, since its outputs are no alternatives.
LINK, LOGISTIC = "link", "logistic"


def predict(
    model: Module,
    images: np.ndarray,
    *,
    batch_size: int = 256,
    device: str = "auto",
    precision: str = FP32,
) -> np.ndarray:
    """Probabilities, float32 (N, classes): softmax of the network's output.

    A network that ends in a softmax or a logistic function gives its probabilities itself. Those of
    a network file whose output is the input of a logistic function are that function's.

    Args:
        images: (N, C, H, W), or (C, H, W) for one. uint8 is normalised as in training,
            ``(x / 255 - mean) / std``, or by the mean image; floats are taken as given, in float32.
        batch_size: images at a time, 1 or more.
        precision: as the Trainer has it.

    Raises:
        ConvloomError: uint8 images for a model that knows no normalisation; other dtypes.
        ShapeError: images of another shape than the network takes.
    """
    size = whole(batch_size, "batch_size")
    images = np.asarray(images)
    if images.ndim == 3:
        images = images[None]
    if images.ndim != 4:
        raise ShapeError(f"predict takes images of shape (N, C, H, W), it got {images.shape}")
    engine = _engine_for(model, images.shape[1:], (device, precision))
    parts = [
        engine.predict(normalised(model, images[start : start + size]))
        for start in range(0, len(images), size)
    ]
    if not parts:
        return np.zeros((0, engine.classes), np.float32)
    output = np.concatenate(parts)
    if _ends_in_probabilities(engine.forward):
        return output
    kept = model.__dict__.get("_extra", {})  # what is saved beside the weights
    return logistic(output) if kept.get(LINK) == LOGISTIC else softmax(output)


def _ends_in_probabilities(graph: Graph) -> bool:
    """Whether the output was made by a softmax or a logistic function."""
    op = next(node.op for node in reversed(graph.nodes) if graph.outputs[0] in node.outputs)
    if isinstance(op, Softmax):
        return not op.log
    return isinstance(op, Activation) and op.kind == "sigmoid"


#: {model: (device and precision, its graph for one image, engine)}: plans are kept from one call
#: to the next.
_engines: WeakKeyDictionary[Module, tuple[tuple[str, str], Graph, Engine]] = WeakKeyDictionary()


def _engine_for(model: Module, shape: tuple[int, ...], where: tuple[str, str]) -> Engine:
    """An engine with the model's current structure and weights."""
    channels, height, width = model.input_shape or shape
    graph = model.trace((channels, height, width), 1)
    known = _engines.get(model)
    if known is not None and known[:2] == (where, graph):
        known[2].pull_weights()
        return known[2]
    # An engine that held its model would keep itself in the dictionary for ever.
    weak = cast("Module", proxy(model))
    image, (device, precision) = (channels, height, width), where
    engine = Engine(weak, input_shape=image, device=device, precision=precision)
    _engines[model] = (where, graph, engine)
    return engine


def normalised(model: Module, images: np.ndarray) -> np.ndarray:
    """float32 images as the network was trained on them."""
    if np.issubdtype(images.dtype, np.floating):
        return images.astype(np.float32, copy=False)
    if images.dtype != np.uint8:
        raise ConvloomError(
            f"predict takes uint8 or float32 images, it got {images.dtype}; pixels from 0 to 255 "
            "go in as images.astype(np.uint8)"
        )
    if model.normalization is None:
        raise ConvloomError(
            "this model does not know its normalisation (it was trained or saved without one), so "
            "uint8 images cannot be scaled as in training; pass float32 images"
        )
    return normalise(images, *model.normalization, model.mean_image)


def logistic(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), in float64 inside, float32 out."""
    return np.exp(-np.logaddexp(0, -logits.astype(np.float64))).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (N, classes) of logits, in float64 inside, float32 out."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    probabilities: np.ndarray = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return probabilities

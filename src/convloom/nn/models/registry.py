"""The networks that have a name."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from typing import Any, Protocol

from convloom.ir import ConvloomError
from convloom.nn.module import Module

#: {name: (module, function)}.
_FACTORIES = {
    "lenet": ("convloom.nn.models.lenet", "lenet"),
    "lenet5": ("convloom.nn.models.lenet5", "lenet5"),
    "vgg-small": ("convloom.nn.models.vgg", "vgg_small"),
    "vgg16": ("convloom.nn.models.vgg", "vgg16"),
    "alexnet": ("convloom.nn.models.alexnet", "alexnet"),
    "alexnet-torchvision": ("convloom.nn.models.alexnet", "alexnet_torchvision"),
    "resnet18": ("convloom.nn.models.resnet", "resnet18"),
    "resnet20": ("convloom.nn.models.resnet", "resnet20"),
    "resnet56": ("convloom.nn.models.resnet", "resnet56"),
    "mobilenet-v1-small": ("convloom.nn.models.mobilenet", "mobilenet_v1_small"),
}


class ModelError(ConvloomError, ValueError):
    """A network that cannot be found or made; says what is known, or the file and line."""


class Factory(Protocol):
    """Makes a network for a data set's classes, channels and image size."""

    def __call__(
        self,
        num_classes: int = ...,
        in_channels: int = ...,
        image_size: int | tuple[int, int] = ...,
        *,
        init: Any = ...,
    ) -> Module: ...


def names() -> tuple[str, ...]:
    """The names that ``get`` knows."""
    return tuple(_FACTORIES)


def get(name: str) -> Factory:
    """The factory of a network. Raises ModelError, with what is known and the nearest name."""
    wished = name.strip().lower().replace("_", "-")
    if wished not in _FACTORIES:
        near = difflib.get_close_matches(wished, _FACTORIES, n=1)
        hint = f"did you mean {near[0]}? Known" if near else "known"
        raise ModelError(
            f"unknown network {name!r}; {hint} are {', '.join(names())}, and path/net.py:function "
            "for one of your own"
        )
    module, function = _FACTORIES[wished]
    factory: Factory = getattr(importlib.import_module(module), function)
    return factory


def is_file(spec: str) -> bool:
    """Whether a network is given as a file: ``net.py``, ``path/net.py:make_model``."""
    path = spec.rpartition(":")[0] or spec
    return path.endswith(".py") or "/" in path or Path(path).is_file()


def build(
    spec: str,
    *,
    num_classes: int = 10,
    in_channels: int = 1,
    image_size: int | tuple[int, int] = 28,
) -> Module:
    """A network by its name or from a person's file, for a data set.

    Raises:
        ModelError: unknown name, or a file that gives no network.
        ShapeError: images that are too small for the network.
    """
    from convloom.nn.models.from_file import from_file

    if is_file(spec):
        return from_file(
            spec, num_classes=num_classes, in_channels=in_channels, image_size=image_size
        )
    return get(spec)(num_classes, in_channels, image_size)

"""Settings known to train a network of the zoo well; files and flags override them.

Each value is a key of ``RunConfig``. docs and README quote the accuracy that these reach, and
``benchmarks/`` reproduces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _frozen(**values: Any) -> Mapping[str, Any]:
    return MappingProxyType(values)


#: {network: settings}. A network without a recipe, a person's own say, starts from RunConfig.
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # One cycle lets a small network take five times the rate it bears when it is constant.
        # Over ten seeds a rate of 0.05 with this weight decay was better on MNIST than 0.03 with
        # half of it, and varied half as much; label smoothing and momentum 0.95 gave nothing.
        "lenet": _frozen(
            data="fashion-mnist",
            epochs=5,
            batch_size=64,
            optimizer="sgd",
            lr=0.05,
            momentum=0.9,
            nesterov=True,
            weight_decay=1e-3,
            schedule="one-cycle",
        ),
        # Without batch normalisation the peak must stay low: 0.05 costs half a percent. Crops and
        # flips stand for more data; this reaches about 87 %.
        "vgg-small": _frozen(
            data="cifar10",
            epochs=20,
            batch_size=64,
            optimizer="sgd",
            lr=0.03,
            momentum=0.9,
            nesterov=True,
            weight_decay=1e-3,
            schedule="one-cycle",
            crop=4,
            flip=True,
        ),
    }
)


def recipe(network: str) -> Mapping[str, Any]:
    """The settings for a network; empty for one that has no recipe."""
    return RECIPES.get(network, MappingProxyType({}))

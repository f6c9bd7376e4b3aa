"""What a backend offers, and how it is found by name.

A backend answers three questions: which ops it can fuse and run (``select``), how persistent
tensors are kept (``storage``), and how a finished plan runs (``executable``).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from convloom.ir import ConvloomError, Node, Plan, Selection, TensorSpec

#: {device name: module whose ``create()`` makes the backend}.
_BACKENDS = {
    "reference": "convloom.backends.reference",
    "cpu": "convloom.backends.cpu",
    "cuda-sim": "convloom.backends.cudasim",
    "cuda": "convloom.backends.cuda",
}
_LOG = logging.getLogger("convloom")


class DeviceError(ConvloomError):
    """A device that this machine does not offer; the message says what is missing."""


class OutOfMemoryError(DeviceError):
    """More memory was asked for than the device has free; nothing was allocated."""


@dataclass(frozen=True)
class LayoutPolicy:
    """Which memory layouts a backend's kernels want.

    Attributes:
        images: ``nhwc`` or ``row`` (NCHW), for activations and their gradients.
        filters: ``krsc`` or ``row`` (KCRS), for convolution weights.
        apart: steps that should lie between two tensors' uses of the same memory, where steps may
            run side by side.
    """

    images: str = "row"
    filters: str = "row"
    apart: int = 0


class Storage(Protocol):
    """The persistent arena: parameters, states and controls, shared by all plans of a network."""

    @property
    def layouts(self) -> Mapping[str, TensorSpec]: ...

    def read(self, name: str) -> np.ndarray:
        """A copy of a tensor in its logical shape."""
        ...

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace a tensor's value. Raises ShapeError when the shape differs."""
        ...


class Executable(Protocol):
    """A plan bound to memory, ready to run many times."""

    @property
    def plan(self) -> Plan: ...

    @property
    def storage(self) -> Storage: ...

    def run(self) -> None:
        """Run every step once; returns when the results can be read."""
        ...

    def run_watched(self) -> str | None:
        """Run step by step; returns the title of the first step that made a NaN or Inf."""
        ...

    def read(self, name: str) -> np.ndarray:
        """A copy of any tensor that is kept, in its logical shape.

        Raises KeyError, with the names that can be read, for a transient that may be overwritten.
        """
        ...

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace an input, parameter, state or control."""
        ...


class Backend(Protocol):
    """One kind of device."""

    @property
    def name(self) -> str: ...

    @property
    def rungs(self) -> Sequence[str]:
        """The ladder, lowest first; ``kernels=`` takes one of these or ``auto``."""
        ...

    @property
    def layout_policy(self) -> LayoutPolicy: ...

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        """What runs ``node``, no higher than the rung ``kernels``; None if nothing can.

        The fusion pass asks the same question of fused nodes that it considers, so an answer must
        depend on the op and the specs alone, and asking must be cheap.
        """
        ...

    def storage(self, plan: Plan) -> Storage:
        """New persistent memory for this plan, zeroed."""
        ...

    def executable(self, plan: Plan, storage: Storage) -> Executable:
        """Compile what is missing and bind the plan to memory.

        Raises ValueError when the plan's persistent tensors are not laid out as in ``storage``.
        """
        ...


def refusal(backend: Backend, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> str:
    """Why ``select`` had no kernel for ``node``: a clause for a plan's notes.

    A backend that can say more than that offers a method ``refusal(node, specs, kernels)``; it
    returns nothing where there is nothing to be told.
    """
    explain: Callable[..., str] | None = getattr(backend, "refusal", None)
    if explain is not None:
        return explain(node, specs, kernels)
    return f"the {backend.name} backend has no kernel for {node.title}"


def get_backend(device: str) -> Backend:
    """The backend for a device name. Raises DeviceError for one that does not exist here."""
    module = _BACKENDS.get(device)
    if module is None:
        known = ", ".join(sorted(_BACKENDS))
        raise DeviceError(f"unknown device {device!r}; this build knows {known} and auto")
    backend: Backend = importlib.import_module(module).create()
    return backend


def resolve_device(device: str) -> str:
    """``auto`` as the best device of this machine; any other name as it is.

    That is the GPU; where none can be used it is the CPU, and a log says once what is missing: a
    warning where there is a GPU, which somebody may have counted on.
    """
    return _best_device() if device == "auto" else device


@cache
def _best_device() -> str:
    cuda = importlib.import_module("convloom.backends.cuda.device")
    missing: str | None = cuda.missing()
    if missing is None:
        return "cuda"
    level = logging.WARNING if cuda.has_gpu() else logging.INFO
    _LOG.log(level, "device auto is cpu: %s", missing)
    return "cpu"

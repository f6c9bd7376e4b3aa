"""Training steps in PyTorch, in the ways that it offers, to be timed beside convloom's.

A peer runs for about so long and returns the images that it trained on and the seconds that they
took, waited for. No peer reads a loss, which would make it wait for each step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from convloom.interop.torch.twin import TorchTwin
from convloom.ir import ConvloomError, Graph
from convloom.ops.precision import BF16, FP32, TF32

#: Steps that warm up before a graph is captured, as PyTorch's manual has it.
_WARM_UP = 3

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """A way in which PyTorch runs a step.

    Attributes:
        compiled: forward, loss and backward by torch.compile.
        graph: the whole step as a captured CUDA graph.
        precision: ``fp32``; ``tf32``, products of matrices and convolutions may round to it;
            ``bf16``, forward and loss under autocast, with weights and updates in fp32.
        channels_last: images and filters lie in PyTorch's memory format of that name, else NCHW.
    """

    name: str
    compiled: bool = False
    graph: bool = False
    precision: str = FP32
    channels_last: bool = False


EAGER, COMPILE = Kind("eager"), Kind("compile", compiled=True)
GRAPH = Kind("graph", graph=True)
BOTH = Kind("compile+graph", compiled=True, graph=True)
BOTH_TF32 = replace(BOTH, name="compile+graph, TF32", precision=TF32)


def kinds(device: str, precision: str = FP32) -> tuple[Kind, ...]:
    """What PyTorch offers on a device in a precision; beside fp32 there is TF32 once more.

    In bf16 each comes in both memory formats: PyTorch's manual advises channels_last for it, but
    small networks may be faster in NCHW.
    """
    offered = (EAGER, COMPILE, GRAPH, BOTH) if device == "cuda" else (EAGER, COMPILE)
    made = tuple(replace(kind, precision=precision) for kind in offered)
    if precision == BF16:
        return (*made, *(in_channels_last(kind) for kind in made))
    return (*made, BOTH_TF32) if device == "cuda" and precision == FP32 else made


def in_channels_last(kind: Kind) -> Kind:
    """The same in that memory format, which its name says."""
    return replace(kind, name=f"{kind.name}, channels_last", channels_last=True)


def check(device: str, threads: int) -> None:
    """See to it that PyTorch can use a device, and uses as many threads of the CPU as convloom.

    Raises:
        ConvloomError: this PyTorch sees no GPU.
    """
    torch.set_num_threads(threads)
    if device == "cuda" and not torch.cuda.is_available():
        raise ConvloomError(
            f"PyTorch {torch.__version__} cannot use the GPU: install one that is built for CUDA, "
            "or compare on --device cpu"
        )


class Peer:
    """Steps of one kind, on batches that lie on the device already and take turns.

    Args:
        forward: the traced network.
        weights: its parameters by name.
        batches: float32 images and int64 labels.
        update: ``sgd`` or ``adamw``.
        options: PyTorch's, for that optimiser: lr, momentum, weight_decay …
        label_smoothing: of the loss.
    """

    def __init__(
        self,
        kind: Kind,
        forward: Graph,
        weights: dict[str, np.ndarray],
        batches: list[tuple[np.ndarray, np.ndarray]],
        *,
        device: str,
        update: str,
        options: Mapping[str, Any],
        label_smoothing: float = 0.0,
    ) -> None:
        self.kind = kind
        self.device = device
        self._batches = [
            (self.placed(torch.from_numpy(x)), torch.from_numpy(y).to(device)) for x, y in batches
        ]
        model: TorchTwin = TorchTwin(forward, weights).to(device)
        if kind.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        make: Any = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[update]
        on_gpu = {"fused": True} if device == "cuda" else {}
        if device == "cuda" and update == "adamw":
            on_gpu["capturable"] = True
        optimizer = make(model.parameters(), **options, **on_gpu)

        def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(model(x), y, label_smoothing=label_smoothing)

        with precision(tf32=kind.precision == TF32):
            cast = _autocast(loss_of, device) if kind.precision == BF16 else loss_of
            self.step = _make_step(kind, model, cast, optimizer, self._batches[0])
            self.first_loss = float(self.step(*self._batches[0]))

    def placed(self, images: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        """Images on the device, in the kind's memory format."""
        form = torch.channels_last if self.kind.channels_last else torch.contiguous_format
        return images.to(self.device, non_blocking=non_blocking, memory_format=form)

    def run_for(self, seconds: float) -> tuple[int, float]:
        """Train for about so long; images and seconds."""
        with precision(tf32=self.kind.precision == TF32):
            return timed(self.step, itertools.cycle(self._batches), seconds, self.device)

    def close(self) -> None:
        """Nothing is held that would have to be given back by hand."""


class Loading:
    """Steps of a peer on batches that a DataLoader makes.

    Args:
        peer: takes the steps.
        images: (samples, C, H, W) uint8, normalised one by one as torchvision's transforms do.
    """

    def __init__(
        self,
        peer: Peer,
        images: np.ndarray,
        labels: np.ndarray,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        batch_size: int,
        workers: int,
        pin_memory: bool,
    ) -> None:
        self._peer = peer
        self._pin_memory = pin_memory
        self._loader: DataLoader[Any] = DataLoader(
            Pixels(images, labels, mean, std),
            batch_size=batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            # Both engines have started CUDA here, which a forked worker would not survive.
            multiprocessing_context="spawn" if workers else None,
        )
        self._batches = self._endless()
        next(self._batches)  # the workers start

    def run_for(self, seconds: float) -> tuple[int, float]:
        """Train for about so long; images and seconds, those of loading included."""
        with precision(tf32=self._peer.kind.precision == TF32):
            return timed(self._peer.step, self._batches, seconds, self._peer.device)

    def close(self) -> None:
        """End the worker processes."""
        self._batches.close()
        iterator: Any = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()

    def _endless(self) -> Any:
        device = self._peer.device
        while True:
            for x, y in self._loader:
                yield (
                    self._peer.placed(x, non_blocking=self._pin_memory),
                    y.to(device, non_blocking=self._pin_memory),
                )


class Pixels(Dataset[tuple[torch.Tensor, int]]):
    """uint8 images in memory, normalised when asked for: what ToTensor and Normalize do."""

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        self._images = torch.from_numpy(images)
        self._labels = labels.tolist()
        self._mean, self._std = (torch.tensor(v).reshape(-1, 1, 1) for v in (mean, std))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._images[index].to(torch.float32).div(255)
        return image.sub_(self._mean).div_(self._std), self._labels[index]


def timed(
    step: Step, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], seconds: float, device: str
) -> tuple[int, float]:
    """Take steps for about so long; images and seconds by the host's clock, all work waited for."""
    synchronize(device)
    start, images = time.perf_counter(), 0
    for x, y in batches:
        step(x, y)
        images += len(x)
        if time.perf_counter() - start >= seconds:
            break
    synchronize(device)
    return images, time.perf_counter() - start


def synchronize(device: str) -> None:
    """Wait until the device has done what it was asked."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def precision(*, tf32: bool) -> Iterator[None]:
    """Whether products may round to TF32; as it was afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _autocast(loss_of: Step, device: str) -> Step:
    """Forward and loss in bf16 where PyTorch's autocast has it so; the backward pass follows.

    The weights' casts are made anew in each step, so that a captured graph makes them too.
    """

    def cast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return loss_of(x, y)

    return cast


def _make_step(
    kind: Kind,
    model: TorchTwin,
    loss_of: Step,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> Step:
    forward = torch.compile(loss_of) if kind.compiled else loss_of

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = forward(x, y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return _captured(step, model, batch) if kind.graph else step


def _captured(step: Step, model: TorchTwin, batch: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """The step as one CUDA graph over inputs of its own, into which batches are copied.

    The weights are afterwards what they were before.
    """
    x, y = (part.clone() for part in batch)
    weights = [p.detach().clone() for p in model.parameters()]
    aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UP):
            step(x, y)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(x, y)
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), weights, strict=True):
            parameter.copy_(before)

    def replay(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x.copy_(images, non_blocking=True)
        y.copy_(labels, non_blocking=True)
        graph.replay()
        return loss

    return replay

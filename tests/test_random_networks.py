"""Random small networks against PyTorch in float64: whatever passes and kernels do to a graph, its
values stay.

A network is a list of steps on numbered values, so that it can be built twice: maps read by several
layers, shared modules, sums and joins of branches, ReLU before and after pools, pools without ReLU,
1×1 maps and odd sizes all come about by chance.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import convloom as cl
from convloom import nn
from convloom.backends.cpu.backend import CpuBackend
from convloom.backends.cpu.toolchain import find_compiler
from convloom.ir import Node, Selection, TensorSpec
from convloom.training import step

Shape = tuple[int, ...]

_SIZES = ((6, 6), (8, 8), (7, 9), (5, 12), (1, 1), (1, 6), (12, 7), (9, 9))
_KERNELS = ((1, 1), (3, 3), (3, 3), (2, 2), (5, 5), (1, 3), (3, 2))


@dataclass
class Recipe:
    """A network: its layers, and steps (kind, layer number, numbers of the values it reads)."""

    batch: int
    layers: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    steps: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)

    def add(self, kind: str, reads: Sequence[int], shape: Shape, layer: int = -1) -> int:
        self.steps.append((kind, layer, tuple(reads)))
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def apply(self, read: int, kind: str, *arguments: Any) -> int | None:
        """A new layer on a value; None, and nothing added, where its window does not fit."""
        layer = getattr(nn, kind)(*arguments)
        try:
            graph = nn.Sequential(layer).trace(self.shapes[read], 1)
        except cl.ShapeError:
            return None
        self.layers.append((kind, arguments))
        shape = graph.specs[graph.outputs[0]].shape[1:]
        return self.add("layer", [read], shape, len(self.layers) - 1)

    def run(self, x: Any, layers: Any, relu: Any, concat: Any) -> Any:
        """The forward pass, in either library."""
        values = [x]
        for kind, layer, reads in self.steps:
            given = [values[read] for read in reads]
            if kind == "layer":
                values.append(layers[layer](given[0]))
            elif kind == "relu":
                values.append(relu(given[0]))
            elif kind == "add":
                values.append(given[0] + given[1])
            else:
                values.append(concat(given, 1))
        return values[-1]


class Ours(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.layers = nn.ModuleList([getattr(nn, kind)(*given) for kind, given in recipe.layers])

    def forward(self, x: Any) -> Any:
        return self.recipe.run(x, self.layers, nn.relu, nn.concat)


class Theirs(torch.nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        layers = [getattr(torch.nn, kind)(*given) for kind, given in recipe.layers]
        self.layers = torch.nn.ModuleList(layers).double()

    def forward(self, x: Any) -> Any:
        return self.recipe.run(x, self.layers, torch.relu, torch.cat)


def recipe(seed: int, classes: int = 0) -> Recipe:
    """A random network; with ``classes`` it ends in that many logits."""
    draw = random.Random(seed)
    made = Recipe(draw.choice((1, 2, 3, 5)))
    made.shapes.append((draw.choice((1, 2, 3, 4)), *draw.choice(_SIZES)))
    at = 0
    for _ in range(draw.randint(2, 7)):
        if draw.random() < 0.25:
            at = draw.randrange(len(made.shapes))
        kinds = (_conv, _conv, _conv, _pool, _relu, _residual, _branches, _again, _spatial)
        at = draw.choice(kinds)(draw, made, at)
    if classes or draw.random() < 0.7:
        at = _head(draw, made, at, classes or draw.choice((1, 3, 17)))
    if made.steps == []:
        made.add("relu", [at], made.shapes[at])
    return made


def _conv(draw: random.Random, made: Recipe, at: int) -> int:
    channels = made.shapes[at][0]
    groups = draw.choice((1, 1, 1, channels))
    filters = groups * draw.choice((1, 2, 3)) if groups > 1 else draw.choice((1, 2, 4, 8, 17))
    stride, dilation = draw.choice((1, 1, 1, 2, (2, 1), 3)), draw.choice((1, 1, 1, 2))
    padding, bias = draw.choice((0, 1, 1, 2, (0, 1))), draw.random() < 0.8
    kernel = draw.choice(_KERNELS)
    out = made.apply(
        at, "Conv2d", channels, filters, kernel, stride, padding, dilation, groups, bias
    )
    if out is None:
        return at
    if draw.random() < 0.6:
        out = _relu(draw, made, out)
    if draw.random() < 0.5:
        return made.apply(out, "MaxPool2d", 2) or out
    return out


def _pool(draw: random.Random, made: Recipe, at: int) -> int:
    kernel, stride = draw.choice((1, 2, 3, (2, 3))), draw.choice((None, 1, 2, 3))
    padding, ceil_mode = draw.choice((0, 0, 1)) if kernel == 2 else 0, draw.random() < 0.4
    if draw.random() < 0.6:
        return made.apply(at, "MaxPool2d", kernel, stride, padding, 1, False, ceil_mode) or at
    kernel = draw.choice((1, 2, (1, 2)))  # means of 1, 2 or 4 are exact in binary
    padding, counts = draw.choice((0, 0, 1)) if kernel == 2 else 0, draw.random() < 0.5
    return made.apply(at, "AvgPool2d", kernel, stride, padding, ceil_mode, counts) or at


def _spatial(draw: random.Random, made: Recipe, at: int) -> int:
    """A layer that moves pixels, or a convolution the other way."""
    channels = made.shapes[at][0]
    kind = draw.choice(("transposed", "transposed", "pad", "maximum", "upsample"))
    if kind == "transposed":
        filters, groups = draw.choice((1, 3, 4)), draw.choice((1, 1, channels))
        kernel, stride = draw.choice(_KERNELS), draw.choice((1, 2, (2, 1)))
        more = 1 if stride == 2 and draw.random() < 0.5 else 0
        padding, bias = draw.choice((0, 0, 1)), draw.random() < 0.6
        out = made.apply(
            at, "ConvTranspose2d", channels, filters * groups, kernel, stride, padding, more,
            groups, bias,
        )  # fmt: skip
        return at if out is None else _relu(draw, made, out) if draw.random() < 0.5 else out
    if kind == "pad":
        layer = draw.choice(("ZeroPad2d", "ReflectionPad2d", "ReplicationPad2d"))
        return made.apply(at, layer, tuple(draw.choice((0, 1, 2)) for _ in range(4))) or at
    if kind == "maximum":
        size = tuple(draw.choice((1, 2, 3, 5)) for _ in range(2))
        return made.apply(at, "AdaptiveMaxPool2d", size) or at
    if max(made.shapes[at][1:]) > 12:
        return at
    return made.apply(at, "Upsample", None, draw.choice((2, (1, 3)))) or at


def _relu(draw: random.Random, made: Recipe, at: int) -> int:
    """An activation, most often ReLU; of the others, those that round nothing."""
    others = (("ReLU6",), ("LeakyReLU", 0.5), ("Hardtanh", -2.0, 3.0))
    if draw.random() < 0.7:
        return made.add("relu", [at], made.shapes[at])
    kind, *arguments = draw.choice(others)
    out = made.apply(at, str(kind), *arguments)
    assert out is not None
    return out


def _same_size(draw: random.Random, made: Recipe, at: int, filters: int) -> int:
    kernel = draw.choice((1, 3, 5))
    out = made.apply(at, "Conv2d", made.shapes[at][0], filters, kernel, 1, kernel // 2)
    assert out is not None
    return _relu(draw, made, out) if draw.random() < 0.5 else out


def _residual(draw: random.Random, made: Recipe, at: int) -> int:
    inner = _same_size(draw, made, at, made.shapes[at][0])
    return made.add("add", draw.choice(((inner, at), (at, inner))), made.shapes[at])


def _branches(draw: random.Random, made: Recipe, at: int) -> int:
    parts = [at] * draw.randint(0, 2)
    parts += [_same_size(draw, made, at, draw.choice((1, 3, 4))) for _ in range(2)]
    channels = sum(made.shapes[part][0] for part in parts)
    return made.add("concat", parts, (channels, *made.shapes[at][1:]))


def _again(draw: random.Random, made: Recipe, at: int) -> int:
    """A layer that ran already, on its own output where that has the shape of its input."""
    for kind, layer, reads in draw.sample(made.steps, len(made.steps)):
        if kind == "layer" and made.shapes[reads[0]] == made.shapes[at]:
            after = made.shapes[made.steps.index((kind, layer, reads)) + 1]
            return made.add("layer", [at], after, layer)
    return at


def _head(draw: random.Random, made: Recipe, at: int, classes: int) -> int:
    flat = made.apply(at, "Flatten")
    assert flat is not None
    read = _relu(draw, made, flat) if draw.random() < 0.3 else flat
    if draw.random() < 0.3:
        hidden = made.apply(read, "Linear", made.shapes[read][0], 16)
        assert hidden is not None
        read = _relu(draw, made, hidden)
    out = made.apply(read, "Linear", made.shapes[read][0], classes, draw.random() < 0.8)
    assert out is not None
    if draw.random() < 0.3:  # a second layer that reads the flat map
        other = made.apply(flat, "Linear", made.shapes[flat][0], classes)
        assert other is not None
        out = made.add("add", [out, other], (classes,))
    return out


def twins(made: Recipe, draw: np.random.Generator, whole: bool) -> tuple[Ours, Theirs]:
    """The network in both libraries, with the same weights: whole numbers, or normal ones."""
    ours, theirs = Ours(made), Theirs(made)
    state = {}
    for name, value in theirs.state_dict().items():
        if whole:
            state[name] = draw.integers(-1, 2, value.shape).astype(np.float32)
        else:
            scale = np.sqrt(1.5 / max(1, np.prod(value.shape[1:])))
            state[name] = (draw.standard_normal(value.shape) * scale).astype(np.float32)
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    if state:
        ours.load_state_dict(state)
    return ours, theirs


def expected(theirs: Theirs, x: np.ndarray, dy: np.ndarray) -> dict[str, np.ndarray]:
    """Output and gradients as PyTorch has them."""
    wide = torch.from_numpy(x).double().requires_grad_()
    y = theirs(wide)
    y.backward(torch.from_numpy(dy).double())
    found = {"y": y.detach(), "dx": wide.grad}
    found |= {name: parameter.grad for name, parameter in theirs.named_parameters()}
    parameters = dict(theirs.named_parameters())
    return {
        name: np.zeros(tuple(parameters[name].shape)) if value is None else value.numpy()
        for name, value in found.items()
    }


def check(made: Recipe, seed: int, whole: bool, tolerance: float, **where: Any) -> None:
    """``cl.vjp`` of the network against PyTorch; ``tolerance`` is of each tensor's largest."""
    draw = np.random.default_rng(seed)
    ours, theirs = twins(made, draw, whole)

    def values(shape: Shape) -> np.ndarray:
        drawn = draw.integers(-2, 3, shape) if whole else draw.standard_normal(shape)
        return drawn.astype(np.float32)

    x, dy = values((made.batch, *made.shapes[0])), values((made.batch, *made.shapes[-1]))
    right = expected(theirs, x, dy)
    given = x.astype(np.float64) if where["device"] == "reference" else x
    y, dx, gradients = cl.vjp(ours, given, dy, **where)
    found = {"y": y, "dx": dx, **gradients}
    assert found.keys() == right.keys()
    for name, value in right.items():
        largest = np.abs(value).max(initial=1e-3)
        np.testing.assert_allclose(
            found[name], value, rtol=0, atol=tolerance * largest, err_msg=f"{name} of {made}"
        )


class EverythingFused(CpuBackend):
    """The CPU's layouts, every fusion there is, and the planned memory; the ops are NumPy's."""

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection:
        return Selection("dense", "reference", None)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = EverythingFused(find_compiler())
    monkeypatch.setattr(step, "get_backend", lambda device: backend)


@pytest.mark.parametrize("start", range(0, 100, 50))
def test_references_and_autodiff(start: int) -> None:
    for seed in range(start, start + 50):
        check(recipe(seed), seed, whole=False, tolerance=1e-10, device="reference")


@pytest.mark.parametrize("start", range(0, 100, 50))
def test_fusion_layouts_and_memory(start: int, fused: None) -> None:
    """On whole numbers, where ties and zeros abound and float32 is exact."""
    for seed in range(start, start + 50):
        check(recipe(seed), seed, whole=True, tolerance=1e-6, device="cpu")


@pytest.mark.parametrize("seed", (10, 20))
@pytest.mark.parametrize("kernels", ("dense", "sparse", "auto"))
def test_cpu_kernels(seed: int, kernels: str) -> None:
    # Filtering by Winograd rounds whole numbers, so that a 0 may not stay one.
    whole = kernels != "auto"
    check(recipe(seed), seed, whole, 1e-6 if whole else 3e-5, device="cpu", kernels=kernels)


@pytest.mark.parametrize("seed", (5,))
@pytest.mark.parametrize("kind", ("SGD", "AdamW"))
def test_training_steps(seed: int, kind: str) -> None:
    made, draw = recipe(seed, classes=5), np.random.default_rng(seed)
    ours, theirs = twins(made, draw, whole=False)
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.01}
    if kind == "SGD":
        options |= {"momentum": 0.9, "nesterov": True}
    rule = getattr(torch.optim, kind)(theirs.parameters(), **options)
    compiled = cl.compile(
        ours,
        nn.CrossEntropyLoss(),
        getattr(cl.optim, kind)(**options),
        batch_size=4,
        input_shape=made.shapes[0],  # type: ignore[arg-type]
        device="cpu",
        clip_norm=0.5,
    )
    for size in (4, 4, 1, 4):
        x = draw.standard_normal((size, *made.shapes[0])).astype(np.float32)
        labels = draw.integers(0, 5, size)
        loss = torch.nn.functional.cross_entropy(
            theirs(torch.from_numpy(x).double()), torch.from_numpy(labels)
        )
        assert compiled(x, labels) == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
        rule.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        rule.step()
    state = compiled.state_dict()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=0, atol=1e-3, err_msg=name)

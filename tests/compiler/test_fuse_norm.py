"""What fusion does around batch normalisation, and that the numbers stay."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.compiler.fuse import fuse
from convloom.compiler.inference import for_inference
from convloom.compiler.interpret import interpret
from convloom.ir import Graph
from tests.compiler.helpers import AnyBackend, same_results, training, values


class Block(nn.Module):
    """A residual block; with ``project`` its shortcut is a convolution and a norm too."""

    def __init__(self, project: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4 if project else 3, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(4 if project else 3, affine=False)
        self.short = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)) if project else None
        self.pool = nn.AvgPool2d(2)
        self.fc = nn.Linear((4 if project else 3) * 9, 5)

    def forward(self, x: Any) -> Any:
        x = nn.relu(x)
        y = self.bn2(self.conv2(nn.relu(self.bn1(self.conv1(x)))))
        short = x if self.short is None else self.short(x)
        return self.fc(nn.flatten(self.pool(nn.relu(y + short))))


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize(
    "refuses",
    [(), ("FusedBatchNorm",), ("FusedBatchNormGrad", "FusedConv2dDgrad"), ("FusedConv2dDgrad",)],
)
def test_training(project: bool, refuses: tuple[str, ...]) -> None:
    model = Block(project)
    before = training(model, (3, 6, 6))
    after = fuse(before, AnyBackend(refuses=refuses), "auto")
    found = kinds(after)
    if "FusedBatchNorm" not in refuses:
        assert found["FusedBatchNorm"] == 2
        assert found["Add"] == kinds(before)["Add"] - 1
    if "FusedBatchNormGrad" not in refuses:
        fused = [n.op for n in after.nodes if n.op.name == "FusedBatchNormGrad"]
        assert len(fused) == 2
        # Behind bn2 something was added, and where it is not fused there is nothing to rely on.
        assert sum(op.again for op in fused) == ("FusedBatchNorm" not in refuses)
        kept = [n for n in after.nodes if n.op.name == "FusedBatchNormGrad" and n.op.keep]
        assert len(kept) == project  # else nothing behind the shortcut wants a gradient
    same_results(before, after, model)


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("refuses", [(), ("FoldBatchNorm",), ("FusedBatchNormInference",)])
def test_inference(project: bool, refuses: tuple[str, ...]) -> None:
    model = Block(project)
    before = for_inference(model.trace((3, 6, 6), 4))
    after = fuse(before, AnyBackend(refuses=refuses), "auto")
    found = kinds(after)
    norms = 2 + project
    if "FoldBatchNorm" in refuses:
        assert found["FusedBatchNormInference"] == 2
        assert found["BatchNormInference"] == norms - 2
    else:
        assert found["FoldBatchNorm"] == norms
        assert not found["BatchNormInference"] + found["FusedBatchNormInference"]
        assert found["FusedConv2d"] == 1
    given = values(before, model)
    given = {k: np.abs(v) if k.endswith("running_var") else v for k, v in given.items()}
    one, two = (interpret(graph, given)["output"] for graph in (before, after))
    np.testing.assert_allclose(two, one, rtol=1e-10)


def test_the_mask_in_front_of_a_response_norm() -> None:
    class Net(nn.Module):
        def __init__(self, twice: bool) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.LocalResponseNorm(3, 0.5)
            self.fc, self.twice = nn.Linear(64, 5), twice

        def forward(self, x: Any) -> Any:
            y = nn.relu(self.conv(x))
            z = self.norm(y)
            return self.fc(nn.flatten(z + y if self.twice else z))

    for twice in (False, True):
        model = Net(twice)
        before = training(model, (3, 6, 6))
        after = fuse(before, AnyBackend(), "auto")
        assert kinds(after)["FusedLocalResponseNormGrad"] == (not twice)
        assert kinds(after)["ReLUGrad"] == twice
        same_results(before, after, model)


def test_filters_are_not_folded_where_they_are_more_than_the_outputs() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 6), nn.BatchNorm2d(8))
    for batch, folds in ((4, 0), (200, 1)):
        graph = for_inference(model.trace((3, 6, 6), batch))
        assert kinds(fuse(graph, AnyBackend(), "auto"))["FoldBatchNorm"] == folds


def test_other_activations() -> None:
    """ReLU6 forward and backward; Hardswish forward alone, since its gradient reads its input."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, affine=False), nn.LeakyReLU(0.1),
        nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Hardswish(), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    before = training(model, (3, 6, 6))
    after = fuse(before, AnyBackend(), "auto")
    assert kinds(after)["FusedBatchNorm"] == kinds(after)["FusedBatchNormGrad"] == 2
    assert kinds(after)["BatchNorm"] == kinds(after)["Activation"] == 1
    same_results(before, after, model)
    predicts = fuse(
        for_inference(model.trace((3, 6, 6), 4)), AnyBackend(refuses=("FoldBatchNorm",)), "auto"
    )
    assert kinds(predicts)["FusedBatchNormInference"] == 3


class Random(nn.Module):
    """Convolutions, norms, activations and sums in random order, on values read more than once."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 1, bias=bool(i % 2)) for i in range(4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(3, affine=bool(i % 2)) for i in range(3)])
        self.activations = [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.LeakyReLU(-0.5), nn.Tanh()]
        self.rest = nn.ModuleList(self.activations)
        self.fc = nn.Linear(27, 5)

    def forward(self, x: Any) -> Any:
        draw = random.Random(self.seed)
        values = [x]
        for _ in range(draw.randint(3, 12)):
            at = values[-1] if draw.random() < 0.7 else draw.choice(values)
            kind = draw.choice(("conv", "norm", "norm", "act", "act", "add"))
            if kind == "add":
                values.append(at + draw.choice(values))
            else:
                layers = {"conv": self.convs, "norm": self.norms, "act": self.rest}[kind]
                values.append(layers[draw.randrange(len(layers))](at))
        return self.fc(nn.flatten(values[-1] + draw.choice(values)))


@pytest.mark.parametrize("start", range(0, 120, 30))
def test_random_networks(start: int) -> None:
    found: Counter[str] = Counter()
    for seed in range(start, start + 30):
        model = Random(seed)
        before = training(model, (3, 3, 3), batch=5)
        after = fuse(before, AnyBackend(), "auto")
        found += kinds(after)
        same_results(before, after, model)
        before = for_inference(model.trace((3, 3, 3), 5))
        after = fuse(before, AnyBackend(), "auto")
        found += kinds(after)
        given = values(before, model)
        given = {k: np.abs(v) if k.endswith("running_var") else v for k, v in given.items()}
        one, two = (interpret(graph, given)["output"] for graph in (before, after))
        np.testing.assert_allclose(two, one, rtol=1e-8, atol=1e-10)
    wanted = ("FusedBatchNorm", "FusedBatchNormGrad", "FusedBatchNormInference", "FoldBatchNorm")
    assert all(found[kind] for kind in wanted)


def test_a_norm_that_others_read_stays_apart() -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x: Any) -> Any:
            y = self.bn(x)
            return nn.relu(y) + y + (y + y)

    graph = fuse(Read().trace((3, 4, 4), 2), AnyBackend(), "auto")
    assert kinds(graph)["BatchNorm"] == 1


@pytest.mark.parametrize("device", ["cpu", "cuda-sim"])
def test_a_watched_norm_updates_its_running_values_once(device: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)
    y = np.arange(4)
    states = []
    for watch in ([], ["bn1.out", "bn2.out", "bn1.out.grad", "bn2.out.grad"]):
        model = Block(project=True)
        step = cl.compile(
            model,
            nn.CrossEntropyLoss(),
            cl.optim.SGD(lr=0.1),
            batch_size=4,
            input_shape=(3, 6, 6),
            device=device,
            watch=watch,
        )
        for _ in range(3):
            step(x, y)
        states.append(model.state_dict())
        for name in watch:
            assert np.isfinite(step.read(name)).all()
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value)
    assert states[0]["bn1.num_batches_tracked"] == 3

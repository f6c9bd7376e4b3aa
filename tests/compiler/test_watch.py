"""Watched tensors: right, to the bit what fused kernels use, and without a trace in the rest."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends import get_backend
from convloom.backends.cuda.selectors import RUNGS
from convloom.compiler import compile_graph
from convloom.ir import ConvloomError
from convloom.optim import SGD
from convloom.training.graphs import INDEX, training_graph
from convloom.training.step import TrainingStep

SHAPE, N = (3, 12, 12), 5
#: Everything that a training step of ``network`` makes on its way.
WATCH = [
    *(f"{layer}.out" for layer in range(8)),
    *(f"{layer}.out.grad" for layer in range(8)),
    "4.index",
]
CPU = ("reference", "dense", "sparse", "winograd", "auto")
#: Watched networks do not run on chip, where sums have another order.
PLACES = [
    *(("cpu", rung) for rung in CPU),
    *(("cuda-sim", rung) for rung in RUNGS if rung != "onchip"),
]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 36, 20),
        nn.ReLU(),
        nn.Linear(20, 4),
    )


def compiled(device: str, kernels: str, watch: list[str]) -> TrainingStep:
    return cl.compile(
        network(),
        nn.CrossEntropyLoss(),
        SGD(lr=0.1, momentum=0.9),
        batch_size=N,
        input_shape=SHAPE,
        device=device,
        kernels=kernels,
        watch=watch,
    )


def batch(seed: int, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((n, *SHAPE)).astype(np.float32), draw.integers(0, 4, n)


@pytest.fixture(params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    if shutil.which("g++") is None and request.param != ("cpu", "reference"):
        pytest.skip("compiled kernels need g++ here")
    chosen: tuple[str, str] = request.param
    return chosen


def test_watching_changes_nothing_and_shows_all(place: tuple[str, str]) -> None:
    watched, plain = compiled(*place, WATCH), compiled(*place, [])
    exact = compiled("reference", "auto", WATCH)
    for at, n in enumerate((N, 3, N)):
        assert watched(*batch(at, n)) == plain(*batch(at, n))
        exact(*batch(at, n))
    for name, value in plain.state_dict().items():
        assert watched.state_dict()[name].tobytes() == value.tobytes(), name
        assert watched.read(f"{name}.grad").tobytes() == plain.read(f"{name}.grad").tobytes()
    for name in WATCH:
        got, wanted = watched.read(name), exact.read(name)
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * scale, err_msg=name)


def test_a_tap_has_the_bits_that_the_fused_kernel_used(place: tuple[str, str]) -> None:
    """The map that was never stored, against the pool and the mask that were made from it."""
    step = compiled(*place, WATCH)
    step(*batch(0))
    full = step.read("3.out")
    windows = full.reshape(N, 16, 6, 2, 6, 2).max(axis=(3, 5))
    np.testing.assert_array_equal(step.read("4.out"), windows)
    np.testing.assert_array_equal(full, np.maximum(step.read("2.out"), 0))
    np.testing.assert_array_equal(step.read("1.out"), np.maximum(step.read("0.out"), 0))
    np.testing.assert_array_equal(step.read("7.out"), np.maximum(step.read("6.out"), 0))
    masked = np.where(step.read("1.out") > 0, step.read("1.out.grad"), 0)
    np.testing.assert_array_equal(step.read("0.out.grad"), masked)


def test_watched_runs_read_them_too() -> None:
    step = compiled("cuda-sim", "naive", ["3.out"])
    assert step.watch(*batch(0)) is None
    again = compiled("cuda-sim", "naive", ["3.out"])
    again(*batch(0))
    np.testing.assert_array_equal(step.read("3.out"), again.read("3.out"))


def test_the_input_and_several_names_of_one_node() -> None:
    step = cl.compile(
        network(),
        nn.CrossEntropyLoss(),
        SGD(lr=0.1),
        batch_size=N,
        input_shape=SHAPE,
        device="cpu",
        watch=("input", "4.index", "4.out", "4.out", "loss"),
    )
    step(*batch(0))
    np.testing.assert_array_equal(step.read("input"), batch(0)[0])
    assert step.read("4.index").shape == step.read("4.out").shape


def test_what_cannot_be_watched_and_what_was_not() -> None:
    with pytest.raises(ConvloomError, match=r"no tensor 'nothing' to watch; there are 0\.out, "):
        compiled("cpu", "auto", ["nothing"])
    step = compiled("cpu", "auto", [])
    step(*batch(0))
    with pytest.raises(KeyError, match=r"watch=\['3.out'\]"):
        step.read("3.out")


def test_taps_only_add_steps() -> None:
    """The steps of the plan itself are those of a plan that is not watched, in order."""
    backend = get_backend("cuda")
    forward = network().trace(SHAPE, N)
    graph = training_graph(forward, nn.CrossEntropyLoss(), INDEX, SGD(lr=0.1), False)
    plain, watched = compile_graph(graph, backend), compile_graph(graph, backend, watch=WATCH)
    own = [step.node for step in watched.steps if step.node in plain.graph.nodes]
    assert own == [step.node for step in plain.steps]
    assert len(watched.steps) > len(plain.steps)

"""CPU kernels of the activations: against the references, and their accuracy over all arguments."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.backends.base import Backend, get_backend
from convloom.ir import NHWC, ROW_MAJOR
from convloom.ops import Activation, ActivationGrad
from convloom.ops.activation import KINDS
from tests.backends.cuda.trials import Trial, check
from tests.backends.harness import compare, integers, normals, run_op
from tests.ops.test_activation import FAMILY, SPECIAL

#: The greatest error relative to the result; elsewhere 6e-7. Far to the left GELU is an exponential
#: of what was rounded.
ACCURACY = {"gelu": 1e-5, "gelu_tanh": 1e-5}


@pytest.fixture
def backend() -> Backend:
    return get_backend("cpu")


def family_trials(shape: tuple[int, ...], special: bool) -> list[Trial]:
    """Every function of the family and its gradient, on normals or around special values."""
    trials = []
    for at, (op, _) in enumerate(FAMILY):
        x, dy = 3 * normals(shape, at), normals(shape, 100 + at)
        if special:
            places = np.random.default_rng(at).permutation(x.size)[: len(SPECIAL)]
            x.reshape(-1)[places] = SPECIAL[: len(places)]
        if op.kind == "sqrt":
            x = np.abs(x)
        kept = {"x": (x,), "y": op.reference(x), "": ()}[op.reads]
        trials.append(Trial(op, (x,)))
        trials.append(Trial(ActivationGrad(op.kind, op.a, op.b), (dy, *kept)))
    return trials


@pytest.mark.parametrize(
    ("shape", "special"), [((1,), False), ((3, 5), True), ((2, 17, 31, 33), True)]
)
def test_family(backend: Backend, shape: tuple[int, ...], special: bool) -> None:
    trials = family_trials(shape, special)
    assert check(trials, backend, "dense") == len(trials)


def test_exact_on_small_integers() -> None:
    x, dy = integers((2, 5, 7, 9), 0), integers((2, 5, 7, 9), 1)
    for op in (
        Activation("leaky_relu", 0.5),
        Activation("clamp", -1.0, 2.0),
        Activation("square"),
        Activation("abs"),
        Activation("linear", 2.0, -1.0),
    ):
        compare(op, x, exact=True)
        kept = {"x": (x,), "y": op.reference(x), "": ()}[op.reads]
        compare(ActivationGrad(op.kind, op.a, op.b), dy, *kept, exact=True)


def test_row_major_input_is_reordered() -> None:
    x = normals((3, 5, 7, 9), 0)
    compare(Activation("square"), x, exact=True, layouts=(ROW_MAJOR, NHWC))


@pytest.mark.parametrize("kind", KINDS)
def test_accuracy(kind: str) -> None:
    """Over magnitudes from 1e-30 to 1e4, relative to the result, or 1e-30 where that is greater."""
    op = next(op for op, _ in FAMILY if op.kind == kind)
    size = np.geomspace(1e-30, 1e4, 20_000)
    x = np.concatenate((size, -size if kind != "sqrt" else size)).astype(np.float32)
    (y,) = run_op(op, x, require="dense")
    (wanted,) = op.reference(x.astype(np.float64))
    scale = np.abs(x if kind == "drelu" else wanted)  # drelu takes a difference
    error = np.abs(y - wanted) / np.maximum(scale, 1e-30)
    assert error.max() <= ACCURACY.get(kind, 6e-7), x[error.argmax()]

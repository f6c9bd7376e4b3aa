"""Rounding to narrower formats: every tie, every special value, and which way gradients are cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.ir import ConvloomError
from convloom.ops import PRECISIONS, Round, RoundGradient, check_precision, rounded
from tests.ops.gradcheck import evaluate, gradients

#: Explicit bits of the significand that are kept.
KEPT = {"fp32": 23, "tf32": 10, "bf16": 7}


def patterns() -> np.ndarray:
    """All exponents, both signs, and low bits just below, at and above ties of both formats."""
    low = [0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF]
    high = np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23)
    return (high | np.array(low, np.uint32)).reshape(-1).view(np.float32)


def test_bf16_rounds_as_pytorch_does() -> None:
    values = patterns()
    expected = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(rounded(values, "bf16"), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rounds_to_the_nearest_value_that_the_format_has(precision: str) -> None:
    values = patterns()
    values = values[np.isfinite(values)].astype(np.float64)
    _, exponent = np.frexp(values)
    step = np.ldexp(1.0, np.maximum(exponent - 1, -126) - KEPT[precision])
    if precision == "tf32":
        expected = np.copysign(np.floor(np.abs(values / step) + 0.5) * step, values)  # ties up
    else:
        expected = np.rint(values / step) * step  # ties to even
    with np.errstate(over="ignore"):
        expected = expected.astype(np.float32)
    np.testing.assert_array_equal(rounded(values.astype(np.float32), precision), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shape_and_dtype_stay(precision: str, dtype: str) -> None:
    for shape in ((), (0, 3), (2, 3)):
        made = rounded(np.full(shape, 1 / 3, dtype), precision)
        assert (made.shape, made.dtype) == (shape, np.dtype(dtype))


def test_values_or_gradients_are_rounded() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    dy = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    (y,) = evaluate(Round("bf16"), x)
    np.testing.assert_array_equal(y, rounded(x, "bf16"))
    np.testing.assert_array_equal(gradients(Round("bf16"), [x], dy)[0], dy)
    (y,) = evaluate(RoundGradient("tf32"), x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(gradients(RoundGradient("tf32"), [x], dy)[0], rounded(dy, "tf32"))


@pytest.mark.parametrize("wrong", ["fp16", "", None, 32])
def test_unknown_precision_is_refused(wrong: object) -> None:
    with pytest.raises(ConvloomError, match="choose one of fp32, tf32, bf16"):
        check_precision(wrong)

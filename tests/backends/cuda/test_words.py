"""Arguments of launches, before any driver sees them."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.backends.base import DeviceError
from convloom.backends.cuda.gpu import Call, _failure, _translated, _typed
from convloom.backends.cuda.launch import Specialisation

CALL = Call(Specialisation("toy/naive", (("N", 3),)), (2**40, 7, 0.1), 5, 64, 1024, "conv1")


def test_floats_take_the_parameters_width() -> None:
    for sizes, kind in ((None, np.float32), ([8, 8, 4], np.float32), ([8, 8, 8], np.float64)):
        address, count, value = _typed(CALL, sizes)
        assert (address, count) == (2**40, 7)
        assert type(value) is kind
        assert value == kind(0.1)


@pytest.mark.parametrize("sizes", ([8, 8], [8, 8, 4, 8], [8, 4, 4], [4, 8, 4]))
def test_other_parameters_are_refused(sizes: list[int]) -> None:
    with pytest.raises(
        DeviceError,
        match=r"conv1: the kernel toy/naive\(N=3\) cannot be launched with 5 blocks of 64 threads "
        "and 1024 bytes of shared memory: its parameters",
    ):
        _typed(CALL, sizes)


def test_errors_say_whether_the_process_can_go_on() -> None:
    lost = _failure("CUDA_ERROR_ILLEGAL_ADDRESS: out of bounds", "conv1")
    assert str(lost).startswith("conv1: CUDA_ERROR_ILLEGAL_ADDRESS")
    assert "start it again" in str(lost)
    fine = _translated(RuntimeError("CUDA_ERROR_INVALID_VALUE: one\nmore"), "conv1")
    assert str(fine) == "conv1: CUDA_ERROR_INVALID_VALUE: one"
    assert _translated(lost, "again") is lost

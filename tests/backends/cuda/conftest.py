"""The stand-in for a GPU, and a backend on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from convloom.backends.cuda.backend import CudaBackend
from tests.backends.cuda.hostgpu import HostGpu


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in's compiled kernels lie."""
    return tmp_path_factory.mktemp("hostgpu")


@pytest.fixture
def gpu(objects: Path) -> HostGpu:
    """A stand-in with empty memory."""
    if shutil.which("g++") is None:
        pytest.skip("the stand-in for a GPU needs g++")
    return HostGpu(objects)


@pytest.fixture
def backend(gpu: HostGpu) -> CudaBackend:
    """The CUDA backend on the stand-in; only kernels up to the naive rung run there."""
    return CudaBackend(gpu)

"""The stand-in for a GPU, and a backend on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from convloom.backends.cuda import device
from convloom.backends.cuda.backend import CudaBackend
from tests.backends.cuda.hostgpu import HostGpu


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU its tests are skipped, unless ``-m gpu`` asks for them: then they must run."""
    marks = str(config.getoption("markexpr"))
    if "gpu" in marks and "not gpu" not in marks:
        return
    reason = device.missing()
    if reason is not None:
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason=f"no GPU can be used: {reason}"))


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

"""The other half of the kernels of test_architectures.py, so that two processes share them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.cuda.test_architectures import CAPABILITIES, compiles


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_compiles(capability: tuple[int, int], tmp_path: Path) -> None:
    compiles(1, capability, tmp_path)

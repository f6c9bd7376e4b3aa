"""Settings of the whole test suite."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import settings

# The same examples on every run, and no deadlines: a busy machine must not fail a test.
settings.register_profile("convloom", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("convloom")


def pytest_configure() -> None:
    """In continuous integration, skipped comparisons with PyTorch would hide a broken install."""
    if os.environ.get("CI", "").lower() in ("1", "true") and not importlib.util.find_spec("torch"):
        raise pytest.UsageError(
            "CI is set but PyTorch is not installed; its tests must run there: "
            "pip install 'convloom[test]'"
        )

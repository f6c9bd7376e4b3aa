"""Settings of the whole test suite."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

from convloom.backends.cuda import device

# The same examples on every run, and no deadlines: a busy machine must not fail a test.
settings.register_profile("convloom", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("convloom")

HAS_TORCH = importlib.util.find_spec("torch") is not None
NO_TORCH = "PyTorch, the peer of this test, is not installed: pip install 'convloom[test]'"


def pytest_configure() -> None:
    """In continuous integration, skipped comparisons with PyTorch would hide a broken install."""
    if os.environ.get("CI", "").lower() in ("1", "true") and not HAS_TORCH:
        raise pytest.UsageError(f"CI is set, so no test may be skipped. {NO_TORCH}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU its tests are skipped, unless ``-m gpu`` asks for them: then they must run."""
    marks = str(config.getoption("markexpr"))
    if "gpu" in marks and "not gpu" not in marks:
        return
    marked = [item for item in items if item.get_closest_marker("gpu") is not None]
    reason = device.missing() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no GPU can be used: {reason}"))


def pytest_collection_finish() -> None:
    """On maps as small as these, PyTorch's threads spend their time waiting for each other."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A test file that imports PyTorch is skipped, and says why, where there is no PyTorch."""
    report = yield
    if report.failed and not HAS_TORCH and "No module named 'torch" in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {NO_TORCH}")
    return report

"""Settings of the simulator's tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _reports_stay_with_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fault that a sanitizer finds leaves a report in the folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

"""What several tests of training share."""

from __future__ import annotations

import pytest

from convloom.training import saving


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints take no time, however busy the machine: each epoch's end writes one."""
    monkeypatch.setattr(saving, "_now", lambda: 0.0)

"""Every test of data sees an empty machine: no cache, no CONVLOOM_DATA, no system's data sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from convloom.data import fetch, locate

#: As it was when the tests began.
OFFICIAL_DATA = os.environ.get("CONVLOOM_DATA")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What goes out to the internet runs only when it is asked for with -m network."""
    if "network" in config.getoption("-m"):
        return
    for item in items:
        if item.get_closest_marker("network"):
            item.add_marker(pytest.mark.skip(reason="needs the internet; -m network runs it"))


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CONVLOOM_DATA", raising=False)
    monkeypatch.setattr(locate, "SYSTEM_FOLDERS", (tmp_path / "system",))
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where fetched sets go."""
    return tmp_path / "cache" / "convloom" / "data"


def official(name: str) -> Path:
    """A folder with a real data set; the test is left out where there is none."""
    roots = [Path(OFFICIAL_DATA)] if OFFICIAL_DATA else []
    roots.append(Path(__file__).resolve().parents[3] / "shared" / "data")
    roots.append(Path("/usr/share/datasets"))
    for root in roots:
        if (root / name).is_dir():
            return root / name
    pytest.skip(f"{name} is not on this machine (CONVLOOM_DATA or ../shared/data)")

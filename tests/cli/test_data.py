"""convloom data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convloom.data import catalog
from tests.cli.running import invoke, refused


def test_list() -> None:
    result = invoke("data", "list")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == list(catalog.SETS)
    document = json.loads(invoke("data", "list", "--json").stdout)
    assert [entry["name"] for entry in document] == list(catalog.SETS)
    assert [e["name"] for e in json.loads(invoke("data", "list", "digits", "--json").stdout)] == [
        "digits"
    ]


def test_info() -> None:
    result = invoke("data", "info", "digits")
    assert result.exit_code == 0, result.output
    assert "1,437 train, 360 test" in result.stdout
    assert "CC BY 4.0" in result.stdout
    document = json.loads(invoke("data", "info", "digits", "--json").stdout)
    assert document["shape"] == [1, 8, 8]
    assert document["sizes"] == {"train": 1437, "test": 360}
    assert all(file["official"] for file in document["files"])


@pytest.mark.parametrize("command", ["info", "get"])
def test_a_folder_is_no_name(tmp_path: Path, command: str) -> None:
    message = refused(2, "data", command, tmp_path)
    assert f"{tmp_path} is a folder, which train, eval and others take as --data" in message


def test_get_of_what_is_there() -> None:
    assert "digits is in " in invoke("data", "get", "digits").stdout
    assert json.loads(invoke("data", "get", "digits", "--json").stdout)["name"] == "digits"


@pytest.mark.parametrize("verb", ["get", "info", "list"])
def test_unknown_name(verb: str) -> None:
    assert "did you mean mnist?" in refused(2, "data", verb, "minst")


def test_info_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CONVLOOM_DATA", raising=False)
    assert "convloom data get cifar100" in refused(1, "data", "info", "cifar100")
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage() -> None:
    assert "Did you mean 'list'?" in refused(2, "data", "lisst")
    assert "missing argument 'NAME'" in refused(2, "data", "info")
    assert "missing argument 'NAME'" in refused(2, "data", "get")

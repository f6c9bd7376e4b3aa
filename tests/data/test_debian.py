"""Debian's way, with stand-ins for apt-get and dpkg-deb; the real ones: test_official.py."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest

from convloom.data import DataError, catalog, load
from convloom.data.catalog import DebianPackage
from tests.data.tiny import idx_contents, known_idx, place

CONTENTS = idx_contents()

APT = """#!/bin/sh
echo "$@" >> "{log}"
for word; do
  case "$word" in
    Dir::State::Lists=*) lists=${{word#*=}};;
    update) [ -d "$lists/partial" ] || exit 100; {update}; exit 0;;
    download) {download}; exit 0;;
  esac
done
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/share/datasets"
cp -r "{tree}" "$3/usr/share/datasets/tiny-set"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for stand-ins, first in PATH; ``tiny`` can only be had from Debian."""
    known = replace(
        known_idx("tiny", CONTENTS, ("http://127.0.0.1:9/",)),
        debian=DebianPackage("dataset-tiny", "tiny-set", 1000),
    )
    monkeypatch.setattr(catalog, "SETS", {"tiny": known})
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def stand_in(
    tools: Path,
    tmp_path: Path,
    download: str = "echo deb > dataset-tiny_1_all.deb",
    update: str = "true",
) -> Path:
    log, tree = tmp_path / "apt.log", tmp_path / "tree"
    install(tools, "apt-get", APT.format(log=log, download=download, update=update))
    install(tools, "dpkg-deb", DPKG.format(tree=tree))
    place(tree, CONTENTS, ".gz")
    return log


def test_private_folders_and_official_content(tools: Path, tmp_path: Path, cache: Path) -> None:
    log = stand_in(tools, tmp_path)
    assert len(load("tiny")[0]) == 30
    update, download = log.read_text().splitlines()
    assert update.endswith("update")
    assert download.endswith("download dataset-tiny")
    for line in (update, download):
        assert f"Dir::State::Lists={cache}/tiny/.fetching-" in line
        assert f"Dir::Cache={cache}/tiny/.fetching-" in line
    assert sorted(p.name for p in (cache / "tiny").iterdir()) == sorted(
        f"{name}.gz" for name in CONTENTS
    )


def test_other_content_is_refused(tools: Path, tmp_path: Path, cache: Path) -> None:
    stand_in(tools, tmp_path)
    changed = bytearray(CONTENTS["t10k-images-idx3-ubyte"])
    changed[-1] ^= 1
    (tmp_path / "tree" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(changed))
    with pytest.raises(DataError, match=r"apt-get download dataset-tiny: .*expected the SHA-256"):
        load("tiny")
    assert list((cache / "tiny").iterdir()) == []


def test_no_such_package(tools: Path, tmp_path: Path) -> None:
    stand_in(
        tools,
        tmp_path,
        download='echo "E: Unable to locate package dataset-tiny" >&2; exit 100',
        update='echo "E: Failed to fetch everything" >&2; exit 100',
    )
    with pytest.raises(DataError) as caught:
        load("tiny")
    message = str(caught.value)
    assert "'apt-get download dataset-tiny' failed: E: Unable to locate package" in message
    assert "'apt-get update' failed: E: Failed to fetch everything" in message
    assert "run 'apt install dataset-tiny'" in message
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz: no connection" in message


def test_a_failed_update_of_other_sources_is_no_matter(tools: Path, tmp_path: Path) -> None:
    stand_in(tools, tmp_path, update="exit 100")
    assert len(load("tiny")[0]) == 30


def test_not_a_debian_machine(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(DataError, match="there is no apt-get on this machine"):
        load("tiny")

"""Atomic replacement of files: kills, full disks, concurrent writers, leftovers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convloom import files

#: Overwrites argv[1] for ever with blocks of one repeated digit, and says when it has begun.
_WRITER = """
import sys
from convloom import files
print("ready", flush=True)
version = 0
while True:
    version = (version + 1) % 10
    files.write_bytes(sys.argv[1], bytes([48 + version]) * 300_000)
"""

#: Writes 1 MB to argv[1] where a file may hold only 64 KiB, as on a full disk.
_FULL_DISK = """
import resource, signal, sys
from convloom import files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    files.write_bytes(sys.argv[1], b"n" * 1_000_000)
except files.FileError as error:
    print(error)
"""


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".partial")]


def half_written(target: Path, failure: type[BaseException]) -> None:
    with files.replacing(target) as file:
        file.write(b"half")
        raise failure


def test_content_is_replaced_and_nothing_is_left(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    files.write_text(target, "old")
    files.write_text(target, "größer")
    assert target.read_text(encoding="utf-8") == "größer"
    assert os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, TimeoutError])
def test_a_failing_block_keeps_the_old_file(tmp_path: Path, failure: type[BaseException]) -> None:
    target = tmp_path / "net"
    files.write_text(target, "old")
    with pytest.raises(failure) as caught:
        half_written(target, failure)
    assert type(caught.value) is failure  # an OSError of the block's own is not ours to explain
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["net"]


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    files.write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_errors_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(files.FileError, match=r"cannot write .*/a/b: the folder .*/a does not"):
        files.write_text(tmp_path / "a" / "b", "x")
    with pytest.raises(OSError, match="it is a folder"):
        files.write_text(tmp_path, "x")


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "net"
    target.write_text("old")
    command = [sys.executable, "-c", _FULL_DISK, str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"cannot write {target}: File too large; nothing was changed" in result.stdout
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["net"]


def test_leftovers_go_and_live_writers_stay(tmp_path: Path) -> None:
    target = tmp_path / "net"
    (tmp_path / ".net.0badf00d.partial").write_text("of a killed writer")
    (tmp_path / ".other.0badf00d.partial").write_text("of another file")
    with files.replacing(target) as slow:
        slow.write(b"slow")
        assert len(leftovers(tmp_path)) == 2  # the other file's, and that of this writer
        files.write_bytes(target, b"fast")
        assert target.read_bytes() == b"fast"
        assert len(leftovers(tmp_path)) == 2
    assert target.read_bytes() == b"slow"
    assert leftovers(tmp_path) == [".other.0badf00d.partial"]


@pytest.mark.parametrize("kills", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_writers_leave_a_whole_file(tmp_path: Path, kills: int) -> None:
    target, chance = tmp_path / "net", random.Random(kills)
    target.write_bytes(b"0" * 300_000)
    for _ in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(target)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.random() * 0.02)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        content = target.read_bytes()
        assert len(content) == 300_000
        assert len(set(content)) == 1
    assert len(leftovers(tmp_path)) <= 1  # each writer removed what the one before had left
    files.write_bytes(target, b"new")
    assert os.listdir(tmp_path) == ["net"]

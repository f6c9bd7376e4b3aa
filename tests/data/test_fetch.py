from __future__ import annotations

import gzip
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from convloom.data import DataError, catalog, fetch, load
from convloom.data.catalog import Download, KnownFile, KnownSet
from convloom.data.fetch import FetchError, transfer
from tests.data.tiny import (
    Site,
    cifar_bytes,
    idx_contents,
    known_idx,
    place,
    serving,
    sha256,
    tar_gz,
)

CONTENT = np.random.default_rng(0).bytes(600_000)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


def cut_short(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
    """Answers the first request with half of the content, and hangs up."""
    if getattr(handler.server, "was_cut", False):
        return True
    handler.server.was_cut = True  # type: ignore[attr-defined]
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.send_header("ETag", f'"{sha256(content)[:8]}"')
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    return False


class TestTransfer:
    def test_whole(self, site: Site, tmp_path: Path) -> None:
        site.files["/a.gz"] = CONTENT
        seen: list[tuple[str, int, int]] = []
        transfer(f"{site.base}a.gz", tmp_path / "a", 600_000, lambda *told: seen.append(told))
        assert (tmp_path / "a").read_bytes() == CONTENT
        assert seen[-1] == ("a.gz", 600_000, 600_000)
        assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)

    def test_goes_on_where_it_was_cut(self, site: Site, tmp_path: Path) -> None:
        site.files["/a.gz"], site.trouble = CONTENT, cut_short
        transfer(f"{site.base}a.gz", tmp_path / "a", 600_000)
        assert (tmp_path / "a").read_bytes() == CONTENT
        assert [wanted for _, wanted in site.asked] == ["", "bytes=300000-"]

    def test_begins_anew_where_the_server_cannot_go_on(self, site: Site, tmp_path: Path) -> None:
        def without_ranges(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
            if not cut_short(handler, content):
                return False
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
            return False

        site.files["/a.gz"], site.trouble = CONTENT, without_ranges
        transfer(f"{site.base}a.gz", tmp_path / "a", 600_000)
        assert (tmp_path / "a").read_bytes() == CONTENT

    def test_gives_up_after_some_attempts(self, site: Site, tmp_path: Path) -> None:
        def busy(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
            handler.send_error(503)
            return False

        site.files["/a.gz"], site.trouble = CONTENT, busy
        with pytest.raises(FetchError, match="the server answers 503"):
            transfer(f"{site.base}a.gz", tmp_path / "a", 600_000)
        assert len(site.asked) == fetch.ATTEMPTS

    def test_not_found_is_not_asked_again(self, site: Site, tmp_path: Path) -> None:
        with pytest.raises(FetchError, match="the server answers 404 Not Found"):
            transfer(f"{site.base}a.gz", tmp_path / "a", 1)
        assert len(site.asked) == 1

    def test_no_endless_answers(self, site: Site, tmp_path: Path) -> None:
        site.files["/a.gz"] = CONTENT
        with pytest.raises(FetchError, match="it sends more than 200 bytes, about 100"):
            transfer(f"{site.base}a.gz", tmp_path / "a", 100)

    def test_a_silent_server(
        self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
        monkeypatch.setattr(fetch, "ATTEMPTS", 1)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.gz"
            with pytest.raises(FetchError, match=r"the server sent nothing for 0\.2 s"):
                transfer(url, tmp_path / "a", 1)

    def test_nobody_there(self, tmp_path: Path) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.gz"
            with pytest.raises(FetchError, match="no connection: Connection refused"):
                transfer(url, tmp_path / "a", 1)


class TestSet:
    """A named set that has to be fetched."""

    contents = idx_contents()

    @pytest.fixture
    def known(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> KnownSet:
        known = known_idx("tiny", self.contents, (f"{site.base}first/", f"{site.base}second/"))
        monkeypatch.setattr(catalog, "SETS", {"tiny": known})
        return known

    def offer(self, site: Site, folder: str, contents: dict[str, bytes] | None = None) -> None:
        for name, content in (contents or self.contents).items():
            site.files[f"/{folder}/{name}.gz"] = gzip.compress(content)

    def test_fetched_once(self, site: Site, known: KnownSet, cache: Path) -> None:
        self.offer(site, "first")
        train, test = load("tiny")
        assert (len(train), len(test)) == (30, 10)
        assert sorted(p.name for p in (cache / "tiny").iterdir()) == sorted(
            f"{name}.gz" for name in self.contents
        )
        asked = len(site.asked)
        assert asked == 4
        assert load("tiny")[0].digest == train.digest
        assert len(site.asked) == asked

    def test_a_wrong_wish_harms_no_cache(self, site: Site, known: KnownSet, cache: Path) -> None:
        self.offer(site, "first")
        load("tiny")
        with pytest.raises(DataError, match="tiny has no coarse classes"):
            load("tiny", coarse=True)
        assert len(list((cache / "tiny").iterdir())) == 4

    def test_second_address(self, site: Site, known: KnownSet) -> None:
        self.offer(site, "second")
        assert len(load("tiny")[0]) == 30

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda packed: packed[: len(packed) // 2], "damaged or cut short"),
            (lambda packed: b"<html><body>Not here</body></html>", "a page of HTML"),
            (
                lambda packed: gzip.compress(bytes([*gzip.decompress(packed)[:-1], 9])),
                "expected the SHA-256",
            ),
            (lambda packed: gzip.compress(gzip.decompress(packed)[:-1]), "expected 916 bytes"),
        ],
        ids=["half", "html", "one byte", "one byte less"],
    )
    def test_what_is_damaged_is_not_kept(
        self, site: Site, known: KnownSet, cache: Path, damage: object, words: str
    ) -> None:
        name = "train-images-idx3-ubyte"
        for folder in ("first", "second"):
            self.offer(site, folder)
            good = site.files[f"/{folder}/{name}.gz"]
            site.files[f"/{folder}/{name}.gz"] = damage(good)  # type: ignore[operator]
        with pytest.raises(DataError) as caught:
            load("tiny")
        message = str(caught.value)
        assert message.count("what arrived was refused") == 2
        assert words in message
        assert f"{site.base}first/{name}.gz" in message
        assert f"{site.base}second/{name}.gz" in message
        assert ".fetching-" not in message
        assert list((cache / "tiny").iterdir()) == []
        self.offer(site, "first")
        assert len(load("tiny")[0]) == 30

    def test_nothing_reachable(self, site: Site, known: KnownSet, cache: Path) -> None:
        with pytest.raises(DataError) as caught:
            load("tiny")
        message = str(caught.value)
        assert message.startswith("tiny is not on this machine and could not be fetched.")
        for part in (
            "1. --data-dir: not given",
            "2. $CONVLOOM_DATA: not set",
            f"3. the cache: there is no folder {cache / 'tiny'}",
            "4. the system's data sets: there is no folder",
            f"5. {site.base}first/train-images-idx3-ubyte.gz: the server answers 404 Not Found",
            "What to do: connect to the internet and try again, or put train-images-idx3-ubyte",
            "--data-dir DIR or set CONVLOOM_DATA=DIR",
        ):
            assert part in message

    def test_only_what_is_missing_is_fetched(
        self, site: Site, known: KnownSet, cache: Path
    ) -> None:
        self.offer(site, "first")
        load("tiny")
        (cache / "tiny" / "t10k-labels-idx1-ubyte.gz").unlink()
        site.asked.clear()
        load("tiny")
        assert [path for path, _ in site.asked] == ["/first/t10k-labels-idx1-ubyte.gz"]

    def test_a_flipped_byte_in_the_cache(
        self, site: Site, known: KnownSet, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The bad file is deleted, said so, and fetched again; without a source it is an error."""
        self.offer(site, "first")
        good = load("tiny")[0].digest
        changed = bytearray(self.contents["train-images-idx3-ubyte"])
        changed[100] ^= 1
        bad = cache / "tiny" / "train-images-idx3-ubyte.gz"
        bad.write_bytes(gzip.compress(changed))
        assert load("tiny")[0].digest == good
        assert "deleted from the cache" in caplog.text
        assert str(bad) in caplog.text
        bad.write_bytes(gzip.compress(changed))
        site.files.clear()
        with pytest.raises(DataError, match=r"the cache: deleted, since .*expected the SHA-256"):
            load("tiny")
        assert not bad.exists()
        assert len(list((cache / "tiny").iterdir())) == 3

    def test_an_unreadable_cache_is_left_alone(
        self, site: Site, known: KnownSet, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.offer(site, "first")
        load("tiny")

        def denied(self: Path, *_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", denied)
        with pytest.raises(DataError, match="cannot be read: Permission denied"):
            load("tiny")
        monkeypatch.undo()
        assert len(list((cache / "tiny").iterdir())) == 4

    def test_a_cache_that_cannot_be_made(
        self, known: KnownSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(DataError, match=r"the cache cannot be written .*set XDG_CACHE_HOME"):
            load("tiny")


class TestArchive:
    """A set that comes as one archive, whose own digest is published."""

    files: ClassVar = {
        "train.bin": cifar_bytes(4, (20, 100), 1),
        "test.bin": cifar_bytes(2, (20, 100), 2),
    }
    archive = tar_gz(files, "cifar-100-binary")

    @pytest.fixture(params=["md5", "sha256"], autouse=True)
    def known(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> KnownSet:
        digest = hashlib.new(request.param, self.archive).hexdigest()
        url = f"{site.base}cifar-100-binary.tar.gz"
        names = ("train.bin", "test.bin")
        known = KnownSet(
            name="cifar100",
            title="",
            layout="cifar100",
            files=tuple(KnownFile(name, len(self.files[name]), None) for name in names),
            classes=tuple(str(k) for k in range(100)),
            shape=(3, 32, 32),
            sizes=(4, 2),
            mean=(0.5,) * 3,
            std=(0.25,) * 3,
            terms="",
            homepage="",
            downloads=(
                Download((url,), len(self.archive), names, ((request.param, digest),), True),
            ),
        )
        monkeypatch.setattr(catalog, "SETS", {"cifar100": known})
        return known

    def test_unpacked_and_recorded(self, site: Site, cache: Path) -> None:
        site.files["/cifar-100-binary.tar.gz"] = self.archive
        train, test = load("cifar100")
        assert (len(train), len(test)) == (4, 2)
        assert sorted(p.name for p in (cache / "cifar100").iterdir()) == [
            "test.bin",
            "train.bin",
            fetch.RECORD,
        ]
        assert (cache / "cifar100" / "train.bin").read_bytes() == self.files["train.bin"]

    def test_the_record_is_enforced(
        self, site: Site, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        site.files["/cifar-100-binary.tar.gz"] = self.archive
        good = load("cifar100")[0].digest
        path = cache / "cifar100" / "train.bin"
        changed = bytearray(path.read_bytes())
        changed[500] ^= 1
        path.write_bytes(changed)
        assert load("cifar100")[0].digest == good
        assert "expected the recorded SHA-256" in caplog.text
        assert path.read_bytes() == self.files["train.bin"]

    def test_another_archive_is_refused(self, site: Site, cache: Path) -> None:
        site.files["/cifar-100-binary.tar.gz"] = self.archive[:-20]
        with pytest.raises(DataError, match=r"what arrived was refused: expected the (md5|sha256)"):
            load("cifar100")
        assert list((cache / "cifar100").iterdir()) == []


def test_a_killed_download_leaves_nothing_that_is_used(
    site: Site, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is killed in the middle of a file; the next one fetches it anew."""
    contents = idx_contents()
    known = known_idx("tiny", contents, (site.base,))
    monkeypatch.setattr(catalog, "SETS", {"tiny": known})
    for name, content in contents.items():
        site.files[f"/{name}.gz"] = gzip.compress(content)
    half_sent, killed = threading.Event(), threading.Event()

    def hang(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        if killed.is_set():
            return True
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        half_sent.set()
        killed.wait(20)
        return False

    site.trouble = hang
    url = f"{site.base}train-images-idx3-ubyte.gz"
    program = (
        "from pathlib import Path\n"
        "from convloom.data import fetch\n"
        f"with fetch.staging(Path({str(cache / 'tiny')!r})) as place:\n"
        f"    fetch.transfer({url!r}, place / 'part', 10**6)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        assert half_sent.wait(20)
        process.kill()
    killed.set()
    assert [path.name for path in (cache / "tiny").iterdir() if path.is_file()] == []
    assert len(load("tiny")[0]) == 30


def test_abandoned_downloads_are_removed(tmp_path: Path) -> None:
    old, young = tmp_path / ".fetching-old", tmp_path / ".fetching-young"
    for folder in (old, young):
        place(folder, {"part": b"x"})
    os.utime(old, (0, 0))
    with fetch.staging(tmp_path) as folder:
        assert folder.is_dir()
        assert not old.exists()
    assert not folder.exists()
    assert young.exists()


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert fetch.cache_folder() == Path("/x/convloom/data")
    monkeypatch.setenv("HOME", "/home/someone")
    for unusable in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert fetch.cache_folder() == Path("/home/someone/.cache/convloom/data")

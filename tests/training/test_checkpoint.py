"""Checkpoint files: always whole, and clear errors for everything that is none."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import convloom
from convloom import nn
from convloom.files import FileError
from convloom.training import checkpoint
from convloom.training.checkpoint import Checkpoint, CheckpointError
from tests.training.helpers import images_and_labels, make_trainer, small_network

NETWORK = checkpoint.network_text(small_network().initialize(0), (1, 6, 6))
ELEMENTS = 200_000


def numbered(path: Path, number: int) -> Checkpoint:
    """A checkpoint whose every part says the same number."""
    weights = small_network().initialize(0).state_dict()
    state = {
        **{name: np.full_like(value, number) for name, value in weights.items()},
        "0.weight.momentum": np.full(ELEMENTS, number, np.float32),
        "counter": np.array([0, number], np.uint64),
    }
    return Checkpoint(path, state, {"seed": number}, {"number": number}, {}, NETWORK)


def number_of(path: Path) -> int:
    """The number of a whole checkpoint; fails where its parts disagree."""
    loaded = checkpoint.load(path)
    number = int(loaded.record["number"])
    assert loaded.settings == {"seed": number}
    assert set(loaded.state) == set(numbered(path, 0).state)
    for name, value in loaded.state.items():
        expected = [0, number] if name == "counter" else number
        np.testing.assert_array_equal(value, expected)
    return number


def in_a_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process; its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(numbered(path, 7))
    assert number_of(path) == 7
    state = checkpoint.load(path).state
    assert state["counter"].dtype == np.uint64
    assert checkpoint.load(path).network == NETWORK


@pytest.mark.parametrize("kills", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments_the_old_or_the_new_is_there(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.save(numbered(path, 0))
    began = time.perf_counter()
    checkpoint.save(numbered(path, 0))
    duration = time.perf_counter() - began
    moments, longest = random.Random(1), 3 * duration
    floor = 0
    for _ in range(kills):

        def overwrite(start: int = floor) -> None:
            for number in range(start + 1, start + 1000):
                checkpoint.save(numbered(path, number))

        child = in_a_child(overwrite)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        found = number_of(path)
        assert found >= floor
        longest *= 1 if found > floor else 1.5  # a busy machine needs longer for one save
        floor = found
    assert floor > 0
    # Leftovers of the killed are ignored by readers and removed by the next writer.
    checkpoint.save(numbered(path, floor + 1))
    assert number_of(path) == floor + 1
    assert [each.name for each in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on file size fails in mid-write, as a full disk does."""
    path = tmp_path / "last.safetensors"
    checkpoint.save(numbered(path, 1))

    def fail_to_write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(FileError, match=r"cannot write .*last\.safetensors.*nothing was") as e:
            checkpoint.save(numbered(path, 2))
        assert e.value.errno == errno.EFBIG

    _, status = os.waitpid(in_a_child(fail_to_write), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert number_of(path) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["last.safetensors"]


def test_every_truncation_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.save(numbered(path, 1))
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for length in (0, 1, 7, 8, 9, header - 1, header, header + 1, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"last\.safetensors") as error:
            checkpoint.load(path)
        assert "\n" not in str(error.value)


class Payload:
    ran = False

    def __reduce__(self) -> tuple[object, ...]:
        return (setattr, (Payload, "ran", True))


def test_foreign_files_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    for content, words in (
        (pickle.dumps(Payload()), "pickle"),
        (b"<html><body>not found</body></html>", "web page"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (os.urandom(1000), "safetensors"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=words) as error:
            checkpoint.load(path)
        assert str(path) in str(error.value)
    assert not Payload.ran
    with pytest.raises(CheckpointError, match="is a folder"):
        checkpoint.load(tmp_path)
    with pytest.raises(CheckpointError, match="No such file"):
        checkpoint.load(tmp_path / "none.safetensors")


def test_a_saved_model_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    small_network().save(path, input_shape=(1, 6, 6))
    with pytest.raises(CheckpointError, match=r"is no checkpoint: it has no training state"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "its training state is damaged"),
        ("[]", "its training state is damaged"),
        ('{"version": 1, "settings": {}}', "its training state is damaged.*record"),
        ('{"version": 99}', "was saved in format 99, this convloom reads 1"),
    ],
)
def test_damaged_and_newer_metadata(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "last.safetensors"
    metadata = {"convloom": NETWORK, "convloom.training": text}
    path.write_bytes(safetensors.numpy.save({"x": np.zeros(1, np.float32)}, metadata))
    with pytest.raises(CheckpointError, match=words):
        checkpoint.load(path)


def test_a_run_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot make the run folder"):
        make_trainer(out=tmp_path / "file" / "run").fit(images_and_labels(8), epochs=1)


def test_what_the_files_of_a_run_say(tmp_path: Path) -> None:
    trainer = make_trainer(out=tmp_path / "new" / "run", schedule="cosine")
    data = images_and_labels(16)
    trainer.fit(data, epochs=2, validation=images_and_labels(8, seed=1))
    folder = tmp_path / "new" / "run"
    assert sorted(each.name for each in folder.iterdir()) == [
        "best.safetensors",
        "last.safetensors",
    ]
    last = checkpoint.load(folder / checkpoint.LAST)
    assert last.settings["data"] == {
        "name": "rows",
        "samples": 16,
        "digest": data.digest,
        "mean": [0.2],
        "std": [0.2],
    }
    assert last.settings["schedule"] == "cosine"
    assert last.settings["optimizer"]["kind"] == "SGD"
    assert last.made_by["convloom"] == convloom.__version__
    assert last.record["progress"]["step"] == 4
    assert len(last.record["history"]["epochs"]) == 2
    assert {"0.weight", "0.weight.momentum", "counter"} <= set(last.state)
    best = checkpoint.load(folder / checkpoint.BEST)
    assert set(best.state) == set(trainer.model.state_dict())


def test_any_reader_of_safetensors_gets_the_weights(tmp_path: Path) -> None:
    trainer = make_trainer(out=tmp_path)
    trainer.fit(images_and_labels(16), epochs=1)
    plain = safetensors.numpy.load_file(tmp_path / checkpoint.LAST)
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_array_equal(plain[name], value)
    other = small_network()
    other.load_state_dict(nn.load_weights(tmp_path / checkpoint.LAST))
    np.testing.assert_array_equal(other.state_dict()["0.weight"], plain["0.weight"])
    with safetensors.safe_open(tmp_path / checkpoint.LAST, framework="np") as file:
        assert json.loads(file.metadata()["convloom.training"])["version"] == 1

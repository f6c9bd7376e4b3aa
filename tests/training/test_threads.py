"""Several Python threads at one network: each gets its own answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from convloom import nn
from convloom.backends.cache import ObjectCache
from convloom.backends.cpu.jit import Jit
from convloom.backends.cpu.launch import Specialisation
from convloom.backends.cpu.toolchain import find_compiler
from convloom.backends.locks import Lock
from convloom.training import Trainer
from convloom.training.optim import SGD
from convloom.training.trainer import TrainerError


def network() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )
    return model.initialize(0)


def at_once(jobs: list[Callable[[], object]]) -> list[object]:
    """What the jobs return, all begun at the same moment in threads of their own."""
    gate = threading.Barrier(len(jobs))

    def begin(job: Callable[[], object]) -> object:
        gate.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(begin, jobs))


@pytest.mark.parametrize("device", ("reference", "cpu"))
def test_predictions_of_many_threads_do_not_mix(device: str) -> None:
    model, rng = network(), np.random.default_rng(0)
    images = [rng.standard_normal((n, 1, 8, 8)).astype(np.float32) for n in (1, 5, 5, 17, 33, 33)]
    alone = [model.predict(batch, device=device) for batch in images]

    def repeat(batch: np.ndarray) -> list[np.ndarray]:
        return [model.predict(batch, device=device) for _ in range(40)]

    together = at_once([lambda batch=batch: repeat(batch) for batch in images])  # type: ignore[misc]
    for right, answers in zip(alone, together, strict=True):
        assert all(np.array_equal(right, answer) for answer in answers)  # type: ignore[attr-defined]


def test_predicting_while_another_thread_trains() -> None:
    from convloom import data

    train, _ = data.load("digits")
    model = network()
    trainer = Trainer(model, SGD(lr=0.01, momentum=0.9), nn.CrossEntropyLoss(), device="cpu")
    alone = Trainer(network(), SGD(lr=0.01, momentum=0.9), nn.CrossEntropyLoss(), device="cpu")
    expected = alone.fit(train, epochs=2)
    answers: list[np.ndarray] = []
    training = threading.Thread(target=trainer.fit, args=(train, 2))
    training.start()
    while training.is_alive():
        answers.append(model.predict(train.images[:50]))
    training.join()
    assert trainer.history.epochs[-1].loss == expected.epochs[-1].loss
    assert all(np.isfinite(answer).all() for answer in answers)


def test_two_threads_cannot_fit_one_trainer() -> None:
    from convloom import data

    train, _ = data.load("digits")
    trainer = Trainer(network(), SGD(lr=0.01), nn.CrossEntropyLoss(), device="reference")

    def fit() -> str:
        try:
            trainer.fit(train, epochs=1)
        except TrainerError as error:
            return str(error)
        return "trained"

    first, second = sorted(str(answer) for answer in at_once([fit] * 2))
    assert first.startswith("fit is running already")
    assert second == "trained"
    assert trainer.steps_done == 23
    trainer.fit(train, epochs=1)


def test_kernels_asked_for_by_many_threads_are_compiled_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler here")
    jit = Jit(compiler, ObjectCache(tmp_path))
    wanted = Specialisation("relu", (("CHUNK", 64),))
    found = at_once([lambda: jit.load([wanted])] * 4)
    assert all(one == found[0] for one in found)
    assert capfd.readouterr().err.count("compiling") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_finds_every_lock_open() -> None:
    lock, held = Lock(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        with lock:
            os._exit(7)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    holder.join()
    assert os.waitstatus_to_exitcode(ended[1]) == 7

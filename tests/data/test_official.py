"""The real sets; each test is left out where its set is not on the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convloom import data
from convloom.data import DataError, catalog
from tests.data.conftest import official

MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_placed_set(name: str, caplog: pytest.LogCaptureFixture) -> None:
    info = data.info(name, official(name))
    known = catalog.get(name)
    assert tuple(info.sizes.values()) == known.sizes
    assert info.shape == known.shape
    assert all(file.official is not False for file in info.files)
    assert caplog.text == ""
    counts = info.counts["train"]
    each = known.sizes[0] // len(known.classes)
    assert counts == (MNIST_TRAIN if name == "mnist" else (each,) * len(known.classes))
    train, _ = data.load(name, official(name))
    mean, std = data.statistics(train.images)
    np.testing.assert_allclose(train.mean, mean, atol=6e-5)
    np.testing.assert_allclose(train.std, std, atol=6e-5)


def test_mnist_is_not_taken_for_fashion() -> None:
    with pytest.raises(DataError, match="of fashion-mnist, it is train-images-idx3-ubyte of mnist"):
        data.load("fashion-mnist", official("mnist"))


def test_catalog_is_consistent() -> None:
    for known in catalog.SETS.values():
        assert len(known.mean) == len(known.std) == known.shape[0]
        assert len(set(known.classes)) == len(known.classes)
        names = [file.name for file in known.files]
        offered = [name for download in known.downloads for name in download.files]
        assert offered in ([], names)
        for file in known.files:
            vouched = [d.digests for d in known.downloads if file.name in d.files]
            assert file.sha256 or all(vouched), f"nothing to check {file.name} by"


@pytest.mark.network
def test_fashion_from_debian(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way through apt-get, into an empty cache."""
    known = catalog.get("fashion-mnist")
    assert known.debian is not None
    from convloom.data.debian import fetch_package

    told: list[tuple[str, int, int]] = []
    fetch_package(known, known.debian, cache / known.name, lambda *now: told.append(now))
    assert data.info("fashion-mnist").place == "the cache"
    assert all(done <= total for _, done, total in told)

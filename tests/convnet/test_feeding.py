"""How cuda-convnet fed its networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from convloom import convnet
from convloom.convnet.feeding import cropped_side
from convloom.data import DataError, from_arrays

DATA = from_arrays(np.zeros((25, 1, 4, 4), np.uint8), np.zeros(25, int))


def test_batch_files() -> None:
    assert convnet.batch_files(DATA) == (25,)
    assert convnet.batch_files(DATA, 10) == (10, 10, 5)
    assert convnet.batch_files(DATA, 5) == (5,) * 5
    own = replace(DATA, files=(20, 5))
    assert convnet.batch_files(own) == (20, 5)
    assert convnet.batch_files(own, 10) == (10, 10, 5)
    assert convnet.updates((20, 5, 8), 8) == (3, 1, 1)
    many = from_arrays(np.zeros((20_001, 1, 1, 1), np.uint8), np.zeros(20_001, int))
    assert convnet.batch_files(many) == (10_000, 10_000, 1)
    with pytest.raises(DataError, match="1 image or more, not 0"):
        convnet.batch_files(DATA, 0)
    for files, minibatch in (((20, 5), 0), ((20, -5), 8), ((20, 5), 2.5)):
        with pytest.raises(DataError, match="files and minibatches have 1 image or more"):
            convnet.updates(files, minibatch)  # type: ignore[arg-type]


def test_crop_borders() -> None:
    assert (cropped_side(256, 16), cropped_side(32, 0), cropped_side(32, 15)) == (224, 32, 2)
    for border in (-1, 16):
        with pytest.raises(DataError, match=f"border of {border} leaves nothing of images"):
            cropped_side(32, border)

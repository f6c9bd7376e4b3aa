"""How cuda-convnet fed its networks, where the pipeline does otherwise.

Pixels stay 0 to 255 and lose the mean image (``ArrayDataset.centred``). Minibatches are cut out of
batch files in order, and schedules count batch files. A crop border b takes the middle in tests and
a part at a random place, mirrored or not, in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from convloom.data import ArrayDataset, DataError

#: Images of a batch file where a data set does not come in any, as CIFAR-10's have.
IMAGES_A_FILE = 10_000
#: Images of ImageNet's batch files that shared one random crop and flip.
SHARED = 32


def batch_files(dataset: ArrayDataset, images: int | None = None) -> tuple[int, ...]:
    """How many images each batch file of a data set has, for ``Trainer(batch_files=…)``.

    Args:
        images: of each file but the last, which may have fewer; None takes the files that the data
            set came in, else 10,000.

    Raises:
        DataError: a file without images.
    """
    if images is None and dataset.files:
        return dataset.files
    each = IMAGES_A_FILE if images is None else images
    if not isinstance(each, Integral) or each < 1:
        raise DataError(f"a batch file has 1 image or more, not {each}")
    full, rest = divmod(len(dataset), each)
    return (each,) * full + ((rest,) if rest else ())


def updates(files: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """The minibatches that each batch file is cut into, for ``optimizer_of(files=…)``.

    Raises:
        DataError: a file or a minibatch without images.
    """
    if not isinstance(batch_size, Integral) or batch_size < 1 or min(files, default=1) < 1:
        raise DataError(
            f"files and minibatches have 1 image or more, not {list(files)} and {batch_size}"
        )
    return tuple(-(-file // batch_size) for file in files)


def cropped_side(side: int, border: int) -> int:
    """The side of what a border leaves. Raises DataError where that is nothing."""
    if border < 0 or side <= 2 * border:
        raise DataError(
            f"a crop border of {border} leaves nothing of images of {side}×{side} pixels; give 0 "
            f"to {(side - 1) // 2}"
        )
    return side - 2 * border

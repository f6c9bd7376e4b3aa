"""Data sets: found or fetched, checked, read, and made into batches.

train, test = data.load("fashion-mnist")      # or a folder, or data.from_arrays(images, labels)
for batch in data.Batches(train, 64, seed=0).epoch(0):
    batch.images, batch.labels                # float32 (n, C, H, W) normalised, int64 (n,)
"""

from convloom.data.augment import (
    Augmentation,
    centre_crop,
    nine_views,
    ten_crops,
    ten_views,
)
from convloom.data.dataset import ArrayDataset, as_dataset, from_arrays, mean_image, statistics
from convloom.data.errors import DataError, WrongContentError
from convloom.data.folders import ON_BAD_IMAGE
from convloom.data.images import DecodedImage, decode_image, decode_square, quietly
from convloom.data.library import (
    FileInfo,
    SetEntry,
    SetInfo,
    available,
    get,
    info,
    is_image_folder,
    load,
)
from convloom.data.library import available as list  # data.list() reads as data.load() does
from convloom.data.loader import Batch, Batches, Dataset
from convloom.normalise import normalise

__all__ = [
    "ON_BAD_IMAGE",
    "ArrayDataset",
    "Augmentation",
    "Batch",
    "Batches",
    "DataError",
    "Dataset",
    "DecodedImage",
    "FileInfo",
    "SetEntry",
    "SetInfo",
    "WrongContentError",
    "as_dataset",
    "available",
    "centre_crop",
    "decode_image",
    "decode_square",
    "from_arrays",
    "get",
    "info",
    "is_image_folder",
    "list",
    "load",
    "mean_image",
    "nine_views",
    "normalise",
    "quietly",
    "statistics",
    "ten_crops",
    "ten_views",
]

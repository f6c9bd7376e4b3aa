"""AlexNet from JPEG files to a network that knows them: every part of the way, at a small size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import convloom as cl
from convloom.nn import models
from tests.data.conftest import official


@pytest.mark.slow
def test_alexnet_learns_photographs_by_heart() -> None:
    """Ten photographs in ten classes, as random 67×67 crops of 76×76 with flips and colour noise;
    then known in the middle crop and in ten crops."""
    photographs, _ = cl.data.load(official("imagenet-sample"), resize=76)
    ten = photographs.subset(np.arange(10))
    ten = replace(ten, classes=ten.classes[:10])
    model = models.alexnet(num_classes=10, image_size=67, init="he")
    trainer = cl.Trainer(
        model,
        cl.optim.SGD(lr=0.002, momentum=0.9, weight_decay=5e-4),
        cl.nn.CrossEntropyLoss(),
        batch_size=10,
        device="cpu",
        augment=cl.data.Augmentation(padding=0, size=67, noise=0.1),
    )
    history = trainer.fit(ten, epochs=100, validation=ten.centre_crop(67))
    assert history[-1].val_accuracy == 1.0
    views = cl.data.ten_crops(ten.images, 67)
    mean = np.mean([model.predict(view) for view in views], axis=0)
    assert (mean.argmax(1) == ten.labels).all()

"""A network of one's own: two convolutions, then linear layers with dropout between them.

convloom plan examples/dropout_net.py:make_model --data cifar10 --device cuda --precision bf16
convloom bench pytorch examples/dropout_net.py:make_model --data cifar10 --precision bf16
"""

from convloom import nn


def make_model(num_classes: int, in_channels: int, image_size: tuple[int, int]) -> nn.Module:
    """The command line gives what it knows of the data set to parameters of these names."""
    height, width = ((size // 2 - 2) // 2 for size in image_size)
    return nn.Sequential(
        nn.Conv2d(in_channels, 24, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 40, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40 * height * width, 120),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(120, num_classes),
    )

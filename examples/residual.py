"""A network of one's own: residual blocks, ordinary Python in ``forward``.

convloom train examples/residual.py:make_model --data fashion-mnist --epochs 1
"""

from convloom import nn


class Residual(nn.Module):
    """y = relu(x + conv(relu(conv(x)))), channels unchanged."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: nn.SymbolicTensor) -> nn.SymbolicTensor:
        return nn.relu(x + self.second(nn.relu(self.first(x))))


def make_model(num_classes: int, in_channels: int, image_size: tuple[int, int]) -> nn.Module:
    """The command line gives what it knows of the data set to parameters of these names."""
    height, width = image_size
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(16),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), num_classes),
    )

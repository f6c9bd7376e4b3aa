"""Networks by name, and a person's own from a file.

models.get("lenet")(num_classes=10, in_channels=1, image_size=28)
models.build("path/net.py:make_model", num_classes=10, in_channels=3, image_size=(32, 32))
"""

from convloom.nn.models.from_file import from_file
from convloom.nn.models.lenet import lenet
from convloom.nn.models.registry import ModelError, build, get, is_file, names
from convloom.nn.models.vgg import vgg_small

__all__ = ["ModelError", "build", "from_file", "get", "is_file", "lenet", "names", "vgg_small"]

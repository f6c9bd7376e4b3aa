"""Networks by name, and a person's own from a file.

models.get("lenet")(num_classes=10, in_channels=1, image_size=28)
models.build("path/net.py:make_model", num_classes=10, in_channels=3, image_size=(32, 32))
"""

from convloom.nn.models.alexnet import alexnet, alexnet_torchvision
from convloom.nn.models.from_file import from_file
from convloom.nn.models.lenet import lenet
from convloom.nn.models.lenet5 import lenet5
from convloom.nn.models.mobilenet import mobilenet_v1_small
from convloom.nn.models.registry import ModelError, build, get, is_file, names
from convloom.nn.models.resnet import resnet18, resnet20, resnet56
from convloom.nn.models.vgg import vgg16, vgg_small

__all__ = [
    "ModelError",
    "alexnet",
    "alexnet_torchvision",
    "build",
    "from_file",
    "get",
    "is_file",
    "lenet",
    "lenet5",
    "mobilenet_v1_small",
    "names",
    "resnet18",
    "resnet20",
    "resnet56",
    "vgg16",
    "vgg_small",
]

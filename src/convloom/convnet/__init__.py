"""The network files of 2012: one says what a network is, the other how it learns."""

from __future__ import annotations

from convloom.convnet.describe import describe
from convloom.convnet.errors import ConfigError
from convloom.convnet.feeding import batch_files, updates
from convloom.convnet.gradcheck import check_grads
from convloom.convnet.net import Net, border_of, load, loss_of
from convloom.convnet.network import Network, read_network
from convloom.convnet.optimizer import optimizer_of, train_step
from convloom.convnet.rules import Rules, frozen, read_rules
from convloom.convnet.tree import ClassTree, TreeError, class_tree

__all__ = [
    "ClassTree",
    "ConfigError",
    "Net",
    "Network",
    "Rules",
    "TreeError",
    "batch_files",
    "border_of",
    "check_grads",
    "class_tree",
    "describe",
    "frozen",
    "load",
    "loss_of",
    "optimizer_of",
    "read_network",
    "read_rules",
    "train_step",
    "updates",
]

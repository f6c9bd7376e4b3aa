"""Small network files for the tests, in the manner of 2012."""

from __future__ import annotations

from convloom.convnet.network import Network, parse_network
from convloom.convnet.rules import Rules, parse_rules
from convloom.convnet.syntax import parse
from convloom.convnet.tree import TreeSource

DATA = """
[data]
type=data
dataIdx=0

[labels]
type=data
dataIdx=1
"""

CONV = """
[conv1]
type=conv
inputs=data
channels=3
filters=8
filterSize=5
padding=2
stride=1
initW=0.01
partialSum=1
neuron=relu
gpu=0
"""

POOL = """
[pool1]
type=pool
pool=max
inputs=conv1
channels=8
sizeX=3
stride=2
"""

SPARSE = """
[conv2]
type=conv
inputs=conv1
channels=8
filters=4
groups=2
filterSize=3
padding=1
initW=0.1
partialSum=0
randSparse=1
filterChannels=8
"""

TAIL = """
[fc10]
type=fc
inputs=pool1
outputs=10
initW=0.1

[probs]
type=softmax
inputs=fc10

[logprob]
type=cost.logreg
inputs=labels,probs
gpu=0
"""

SMALL = DATA + CONV + POOL + TAIL

RULES = """
[conv1]
epsW=0.01
epsB=0.02
momW=0.9
momB=0.8
wc=0.004

[fc10]
epsW=0.1
epsB=0.2
momW=0.9
momB=0.9

[logprob]
coeff=1
topk=5
"""


def network(
    text: str = SMALL,
    size: int = 32,
    *,
    classes: int | None = None,
    tree: TreeSource | None = None,
    strict: bool = False,
) -> Network:
    """The network of a layer file's text."""
    file = parse(text, "layers.cfg", strict=strict)
    return parse_network(file, size, classes=classes, tree=tree, strict=strict)


def rules(text: str = RULES, of: Network | None = None, *, strict: bool = False) -> Rules:
    """The rules of a parameter file's text."""
    return parse_rules(parse(text, "params.cfg", strict=strict), of or network(), strict=strict)


def edited(text: str, old: str, new: str) -> str:
    """A file with one thing changed, which must be there once."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)

"""Every value of two files with every layer type, replaced by what nobody means: read, or refused
in one sentence with file, section and key."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import pytest

from convloom.convnet.errors import ConfigError
from convloom.convnet.layers import READERS
from convloom.convnet.net import Net
from convloom.convnet.network import parse_network
from convloom.convnet.rules import parse_rules
from convloom.convnet.syntax import parse
from tests.convnet.files import DATA

LAYERS = (
    DATA
    + """
[blur0]
type=blur
inputs=data
channels=3
filterSize=3
stdev=1
gpu=0
[href0]
type=href
inputs=blur0
channels=3
[conv1]
type=conv
inputs=blur0,href0
channels=3,3
filters=4,4
filterSize=3,5
padding=1,2
stride=1
groups=1,1
initW=0.1,0.2
initB=0
partialSum=1
sharedBiases=0
neuron=tanh[1.7,0.6]
[rnorm1]
type=rnorm
inputs=conv1
channels=4
size=3
[cnorm1]
type=cnorm
inputs=rnorm1
channels=4
size=3
[cmrnorm1]
type=cmrnorm
inputs=cnorm1
channels=4
size=3
blocked=1
[pool1]
type=pool
pool=max
inputs=cmrnorm1
channels=4
sizeX=3
stride=2
start=-1
outputsX=4
[nails1]
type=nailbed
inputs=conv1
channels=4
stride=2
[both]
type=eltsum
inputs=pool1,nails1
coeffs=1,-1
[most]
type=eltmax
inputs=both,nails1
[sparse]
type=conv
inputs=most
channels=4
filters=2
filterSize=2
groups=2
randSparse=1
filterChannels=2
initW=0.1
partialSum=0
[local]
type=local
inputs=sparse
channels=4
filters=2
groups=2
filterSize=2
stride=1
initW=0.1
neuron=brelu[6]
[half]
type=hs
inputs=local
keep=0.5
[also]
type=neuron
inputs=half
neuron=drelu[2]
[all]
type=concat
inputs=also,half
[fc1]
type=fc
inputs=all,local
outputs=5
initW=0.1,0.1
initB=0.1
weightSource=,
[tree]
type=treefc
inputs=fc1
initW=0.1
[probs]
type=softmax
inputs=tree
[logprob]
type=cost.logreg
inputs=labels,probs
gpu=0
[fc2]
type=fc
inputs=fc1
outputs=5
initW=0.1
neuron=logistic
[cross]
type=cost.crossent2
inputs=labels,fc2
gpu=0
[flickr]
type=cost.rflickr
inputs=labels,fc2
gpu=0
[squares]
type=cost.sum2
inputs=fc2
"""
)

RULES = """
[conv1]
epsW=0.01,0.02
epsB=0.01
momW=0.9,0.8
momB=0.9
wc=0.1,0
wball=0,0
wcNormMin=0,0.1
wcNormMax=0,1
schedW=dexp[tgtFactor=25,noiseStdev=0,numSteps=3]
schedB=linear[tgtFactor=10,noiseStdev=0.5]
superEps=0
quantF=default
[sparse]
epsW=exp[base=0.01;tgtFactor=10]
epsB=0
momW=0
momB=0
[local]
epsW=0.1
epsB=0.1
momW=0
momB=0
wball=0.1
[fc1]
epsW=0.1
epsB=0.1
momW=0
momB=0
[fc2]
epsW=0.1
epsB=0.1
momW=0
momB=0
[tree]
epsW=0.1
epsB=0.1
momW=0
momB=0
[rnorm1]
scale=0.001
pow=0.75
[cnorm1]
scale=0.001
pow=0.75
[cmrnorm1]
scale=0.001
pow=0.75
minDiv=2
[half]
enable=1
[logprob]
coeff=1
topk=2
[cross]
coeff=0.5
[flickr]
coeff=0.5
[squares]
coeff=0.5
"""

#: What nobody means, and what somebody may have meant of another key.
ODD = [
    "",
    "0",
    "-1",
    "3",
    "1.5",
    "nan",
    "-inf",
    "1e39",
    "1e400",
    "99999999999",
    "9" * 5000,
    "1_0",
    "\N{FULLWIDTH DIGIT THREE}",
    "\N{SUPERSCRIPT TWO}",
    "1,2,3,4",
    ",",
    "x",
    "data",
    "conv1,conv1",
    "local",
    "linear[",
    "exp[base=nan;tgtFactor=2]",
    "dexp[tgtFactor=2,noiseStdev=0,numSteps=inf]",
    "tanh[0,0]",
    "1\n 2",
    "\0",
]


def _load(layers: str = LAYERS, rules: str = RULES) -> None:
    network = parse_network(parse(layers, "layers.cfg"), 8, classes=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the stand-in of the tree
        Net(network, parse_rules(parse(rules, "params.cfg"), network))


def _values(text: str) -> Iterator[tuple[str, str]]:
    """(section, line) of every value."""
    section = ""
    for line in text.strip().splitlines():
        if line.startswith("["):
            section = line
        elif line:
            yield section, line


def _with(text: str, section: str, line: str, other: str) -> str:
    """A file with another line in one section."""
    head, found, tail = text.partition(f"{section}\n")
    assert found
    return head + found + tail.replace(line, other, 1)


def _refusal(layers: str, rules: str) -> str:
    """What is said of two files; empty where they are accepted."""
    try:
        _load(layers, rules)
    except ConfigError as error:
        return str(error)
    return ""


def _check(layers: str, rules: str) -> None:
    """An error is a sentence that names the file, a section and what is wrong."""
    said = _refusal(layers, rules)
    assert not said or re.match(r"(layers|params)\.cfg(, line \d+)?: \[[^]]+\] .", said), said
    assert len(said) < 600, said
    assert "\n" not in said, said


def test_the_files_have_every_layer_type() -> None:
    _load()
    types = set(re.findall("^type=(.*)", LAYERS, re.MULTILINE))
    assert types == {*READERS, "data", "treefc"}


@pytest.mark.parametrize(("section", "line"), list(_values(LAYERS)))
def test_odd_values_of_a_layer_file(section: str, line: str) -> None:
    key = line.partition("=")[0]
    for other in (*(f"{key}={value}" for value in ODD), "", f" {line}", key):
        _check(_with(LAYERS, section, line, other), RULES)


@pytest.mark.parametrize(("section", "line"), list(_values(RULES)))
def test_odd_values_of_a_parameter_file(section: str, line: str) -> None:
    key = line.partition("=")[0]
    for other in (*(f"{key}={value}" for value in ODD), "", f" {line}", key):
        _check(LAYERS, _with(RULES, section, line, other))

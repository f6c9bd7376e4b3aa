from __future__ import annotations

import pytest

from convloom.convnet.errors import ConfigError
from convloom.convnet.network import Network, parse_network
from convloom.convnet.reduce import reduced
from convloom.convnet.syntax import parse
from tests.convnet.files import CONV, DATA, POOL, SMALL, SPARSE, TAIL, edited

NORM = "\n[norm1]\ntype=cmrnorm\ninputs=conv1\nchannels=8\nsize=5\n"


def smaller(text: str, divisor: int, size: int = 16) -> Network:
    file = parse(text, "layers.cfg")
    return parse_network(reduced(file, parse_network(file, size), divisor), size)


def channels(net: Network) -> dict[str, int]:
    return {layer.name: layer.extent.channels or layer.extent.count for layer in net.layers}


def test_channels_and_outputs_are_divided_and_maps_stay_as_large() -> None:
    net = smaller(SMALL, 4)
    found = channels(net)
    assert (found["data"], found["conv1"], found["pool1"], found["fc10"]) == (3, 2, 2, 3)
    assert [net[name].extent.side for name in ("conv1", "pool1")] == [16, 8]
    assert net["fc10"].parameters == 2 * 64 * 3 + 3


def test_as_many_remain_as_a_normalisation_needs() -> None:
    net = smaller(DATA + CONV + NORM + edited(POOL, "inputs=conv1", "inputs=norm1") + TAIL, 8)
    assert channels(net)["norm1"] == 5


def test_groups_and_random_connections_keep_their_rules() -> None:
    pool = edited(POOL, "inputs=conv1", "inputs=conv2")
    (window,) = smaller(DATA + CONV + SPARSE + pool + TAIL, 8)["conv2"].definition.windows  # type: ignore[attr-defined]
    assert (window.channels, window.groups, window.filters, window.filter_channels) == (2, 2, 1, 2)


def test_sums_and_rows_follow_their_inputs() -> None:
    rest = """
[twice]
type=eltsum
inputs=conv1,conv1
[row]
type=concat
inputs=twice,pool1
"""
    net = smaller(DATA + CONV + POOL + rest + edited(TAIL, "inputs=pool1", "inputs=row"), 4)
    assert net["row"].extent.count == 2 * (16 * 16 + 8 * 8)


@pytest.mark.parametrize(
    ("divisor", "text", "message"),
    [
        (0, SMALL, "cannot have its channels divided by 0"),
        (2.5, SMALL, "cannot have its channels divided by 2.5"),
        (4, SMALL.replace("inputs=fc10", "inputs=maps") + "", "reads fc16 as maps"),
    ],
)
def test_what_cannot_be_divided_says_so(divisor: int, text: str, message: str) -> None:
    maps = "\n[fc16]\ntype=fc\ninputs=fc10\noutputs=16\ninitW=1\n" + edited(
        edited(POOL, "[pool1]", "[maps]"), "inputs=conv1", "inputs=fc16"
    ).replace("channels=8", "channels=1")
    text = text.replace("\n[probs]", f"{maps}\n[probs]") if "inputs=maps" in text else text
    with pytest.raises(ConfigError, match=message):
        smaller(text, divisor)

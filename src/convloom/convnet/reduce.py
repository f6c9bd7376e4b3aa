"""A network file with fewer channels: the same layers over the same image, quick to check."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral

from convloom.convnet.errors import ConfigError
from convloom.convnet.layers import Concat, Conv, Fc, Norm, TreeFc
from convloom.convnet.network import Data, Layer, Network
from convloom.convnet.syntax import ConfigFile, Entry, Section

#: An fc layer keeps so many outputs: fewer classes would be nothing to tell apart.
_LEAST_OUTPUTS = 2


def reduced(file: ConfigFile, network: Network, divisor: int) -> ConfigFile:
    """The file of a network with about a ``divisor``-th of the filters and outputs of every layer.

    Images, windows, strides and groups stay. As many channels remain as the largest cmrnorm and
    every group need; classes of a treefc stay.

    Raises:
        ConfigError: what breaks a rule, or maps that cannot have fewer channels.
    """
    if not isinstance(divisor, Integral) or divisor < 1:
        raise ConfigError(
            f"cannot have its channels divided by {divisor!r}, but by 1 or more", file.name
        )
    reducer = _Reducer(network, divisor)
    sections = {
        layer.name: reducer.section(file.sections[layer.name], layer) for layer in network.layers
    }
    return replace(file, sections=sections)


class _Reducer:
    """Rewrites sections in file order; ``counts`` has what every layer above then hands on."""

    def __init__(self, network: Network, divisor: int) -> None:
        self._network = network
        self._divisor = divisor
        windows = [w for layer in network.layers for w in getattr(layer.definition, "windows", ())]
        self._unit = math.lcm(
            *(w.groups for w in windows),
            *(w.channels // w.filter_channels for w in windows if w.sparse),
        )
        norms = [one.definition for one in network.layers if one.type == "cmrnorm"]
        self._least = max((norm.size for norm in norms if isinstance(norm, Norm)), default=1)
        self.counts: dict[str, int] = {}

    def section(self, section: Section, layer: Layer) -> Section:
        """The layer's section with fewer channels."""
        self.counts[layer.name] = self._count(layer)
        changed = {}
        definition = layer.definition
        if isinstance(definition, Conv):
            filters = self.counts[layer.name] // layer.extent.side**2
            changed["filters"] = [filters // window.groups for window in definition.windows]
            changed["filterchannels"] = [
                self._part(w.filter_channels, source, layer)
                for w, source in zip(definition.windows, layer.inputs, strict=True)
            ]
        if isinstance(definition, Fc):
            changed["outputs"] = [self.counts[layer.name]]
        if "channels" in section.entries:
            changed["channels"] = [
                self._part(channels, source, layer)
                for channels, source in zip(
                    self._channels(section, layer), layer.inputs, strict=True
                )
            ]
        return replace(section, entries=section.entries | _entries(section, changed))

    def _count(self, layer: Layer) -> int:
        definition = layer.definition
        if isinstance(definition, Data | TreeFc) or layer.is_cost:
            return layer.extent.count
        if isinstance(definition, Conv):
            return self._fewer(layer.extent.channels) * layer.extent.side**2
        if isinstance(definition, Fc):
            return max(_LEAST_OUTPUTS, -(-definition.outputs // self._divisor))
        if isinstance(definition, Concat):
            return sum(self.counts[name] for name in layer.inputs)
        return self._part(layer.extent.count, layer.inputs[0], layer)

    def _fewer(self, channels: int) -> int:
        parts = -(-channels // (self._divisor * self._unit))
        return self._unit * max(parts, -(-self._least // self._unit))

    def _part(self, numbers: int, source: str, layer: Layer) -> int:
        """As much less of ``numbers`` as there is less of the source."""
        part, rest = divmod(numbers * self.counts[source], self._network[source].extent.count)
        if rest:
            raise ConfigError(
                f"reads {source} as maps, of which there cannot be fewer; divide by 1",
                self._network.file,
                layer.name,
                line=layer.line,
            )
        return part

    @staticmethod
    def _channels(section: Section, layer: Layer) -> list[int]:
        channels = [int(text) for text in section.entries["channels"].text.split(",")]
        return channels * len(layer.inputs) if len(channels) == 1 else channels


def _entries(section: Section, changed: dict[str, list[int]]) -> dict[str, Entry]:
    """The values that stand in the section, with other numbers."""
    return {
        key: replace(section.entries[key], text=",".join(map(str, numbers)))
        for key, numbers in changed.items()
        if key in section.entries
    }

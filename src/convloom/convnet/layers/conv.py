"""conv: filters shared by all places; local: filters of their own for every place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from convloom.convnet.layers.base import Definition, Extent, Initial, read_images, read_initial
from convloom.convnet.values import Values


@dataclass(frozen=True)
class Window:
    """How one input is read: its maps, and the filters over them.

    Attributes:
        filters: filters of each group.
        filter_channels: channels that a filter reads; more than channels / groups only where
            ``sparse``.
        sparse: groups read random channels, drawn once and kept.
    """

    channels: int
    side: int
    filters: int
    size: int
    stride: int
    padding: int
    groups: int
    filter_channels: int
    sparse: bool

    @property
    def modules(self) -> int:
        """Places along a side: the last may hang over the edge."""
        return 1 - (self.size - self.side - 2 * self.padding) // self.stride

    @property
    def weights(self) -> int:
        """Numbers in the filters of one place."""
        return self.filters * self.groups * self.filter_channels * self.size**2


@dataclass(frozen=True)
class Conv(Definition):
    """A convolution over the sum of its inputs' products; one bias."""

    windows: tuple[Window, ...]
    initial: Initial
    shared_biases: bool

    weighted: ClassVar[bool] = True
    inputs: ClassVar[tuple[int, int]] = (1, 1 << 16)
    unshared: ClassVar[bool] = False

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        first = self.windows[0]
        return Extent.image(first.filters * first.groups, first.modules)

    def parameters(self, inputs: tuple[Extent, ...]) -> int:
        out = self.extent(inputs)
        places = out.side**2
        weights = sum(window.weights for window in self.windows)
        return weights * (places if self.unshared else 1) + (
            out.channels if self.shared_biases else out.count
        )


@dataclass(frozen=True)
class Local(Conv):
    """A convolution whose filters and biases are other ones at every place."""

    unshared: ClassVar[bool] = True


def read_conv(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Conv:
    """``type=conv``."""
    shared = values.flag("sharedBiases", True)
    conv = Conv(_windows(values, inputs), read_initial(values, len(inputs)), shared)
    _check_partial_sum(values, conv.windows[0].modules, notes)
    return conv


def read_local(values: Values, inputs: tuple[Extent, ...], notes: list[str]) -> Local:
    """``type=local``."""
    return Local(_windows(values, inputs), read_initial(values, len(inputs)), False)


def _check_partial_sum(values: Values, modules: int, notes: list[str]) -> None:
    """It says in which order the original added; ours is fixed, but the rule is kept."""
    if "partialSum" not in values and not values.strict:
        notes.append(f"[{values.section.name}] has no partialSum; it only orders sums, 0 is taken")
        return
    partial = values.integer("partialSum", least=0)
    if partial and modules**2 % partial:
        raise values.error(f"must be 0 or divide the {modules**2} places", "partialSum")


def _windows(values: Values, inputs: tuple[Extent, ...]) -> tuple[Window, ...]:
    count = len(inputs)
    images = read_images(values, inputs)
    groups = values.integers("groups", count, 1, least=1)
    sparse = values.flags("randSparse", count, False)
    columns = zip(
        images,
        values.integers("filters", count, least=1),
        values.integers("filterSize", count, least=1),
        values.integers("stride", count, 1, least=1),
        values.integers("padding", count, 0, least=0),
        groups,
        _filter_channels(values, images, groups, sparse),
        sparse,
        strict=True,
    )
    windows = tuple(Window(image.channels, image.side, *rest) for image, *rest in columns)
    for window in windows:
        _check(values, window)
    _check_equal(values, windows)
    return windows


def _filter_channels(
    values: Values, images: Sequence[Extent], groups: Sequence[int], sparse: Sequence[bool]
) -> tuple[int, ...]:
    plain = tuple(image.channels // group for image, group in zip(images, groups, strict=True))
    if not any(sparse) or "filterChannels" not in values:
        return plain
    given = values.integers("filterChannels", len(images), least=0)
    return tuple(
        own if wanted and own else usual
        for own, wanted, usual in zip(given, sparse, plain, strict=True)
    )


def _check(values: Values, window: Window) -> None:
    if window.size > window.side + 2 * window.padding:
        raise values.error(
            f"must be at most the input's side and padding, {window.side + 2 * window.padding}",
            "filterSize",
        )
    if window.groups > 1 and window.channels % window.groups:
        raise values.error(f"must divide the {window.channels} channels", "groups")
    if window.sparse:
        _check_sparse(values, window)
    if values.strict:
        _check_kernels(values, window)


def _check_sparse(values: Values, window: Window) -> None:
    if window.groups == 1:
        raise values.error("needs more than one group", "randSparse")
    read = window.groups * window.filter_channels
    if window.channels % window.filter_channels or read % window.channels:
        raise values.error(
            f"must divide the {window.channels} channels, and times the groups be a multiple",
            "filterChannels",
        )


def _check_kernels(values: Values, window: Window) -> None:
    """Limits of the original's kernels, which are not ours."""
    if window.channels > 3 and window.channels % 4:
        raise values.error("must be 1, 2, 3 or a multiple of 4", "channels")
    if window.groups > 1 and window.channels % (4 * window.groups):
        raise values.error("must be a multiple of 4 for every group", "channels")
    if window.filters % 16:
        raise values.error("must be a multiple of 16", "filters")
    if window.sparse and window.filter_channels % 4:
        raise values.error("must be a multiple of 4", "filterChannels")
    if window.stride > window.size:
        raise values.error("must be at most filterSize", "stride")


def _check_equal(values: Values, windows: tuple[Window, ...]) -> None:
    first = windows[0]
    for window in windows[1:]:
        if window.modules != first.modules:
            raise values.error(
                f"gives {window.modules} places a side for one input, {first.modules} for another",
                "filterSize",
            )
        if window.filters * window.groups != first.filters * first.groups:
            raise values.error("times groups must be the same for all inputs", "filters")

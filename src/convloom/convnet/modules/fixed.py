"""Layers without weights as modules: pools, normalisations, sums, and the like."""

from __future__ import annotations

from convloom.convnet.layers import Apply, Blur, EltSum, HalfSparse, Mirror, Nailbed, Norm, Pool
from convloom.convnet.modules.base import Piece, as_maps, as_vector
from convloom.convnet.modules.neurons import apply_neuron
from convloom.convnet.rules import LayerRule
from convloom.ir.errors import ConvloomError
from convloom.nn import functional
from convloom.nn.tensor import SymbolicTensor


class PoolPiece(Piece):
    """Windows clipped to the image; every input equal to a maximum receives its gradient.

    ``rand`` with ``doMax`` is a maximum.

    Raises:
        ConvloomError: a kind of pool whose kernel was never published.
    """

    def __init__(self, pool: Pool, rule: LayerRule) -> None:
        super().__init__()
        if pool.kind == "rand" and not rule.do_max:
            raise ConvloomError(
                "pool=rand draws by a rule that was never published; write doMax=true in the "
                "parameter file, which takes the maximum, or use pool=max"
            )
        self.pool = pool

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        pool = self.pool
        x = as_maps(inputs[0], pool.image)
        if pool.kind == "avg":
            return functional.avg_pool2d(
                x,
                pool.size,
                pool.stride,
                -pool.start,
                count_include_pad=False,
                outputs=pool.outputs,
            )
        return functional.max_pool2d(
            x,
            pool.size,
            pool.stride,
            -pool.start,
            outputs=pool.outputs,
            ties="all",
            magnitude=pool.kind == "maxabs",
        )


class NormPiece(Piece):
    """rnorm, cnorm, cmrnorm."""

    def __init__(self, norm: Norm, rule: LayerRule) -> None:
        super().__init__()
        assert rule.scale is not None
        assert rule.pow is not None
        self.norm = norm
        self.scale, self.pow, self.least = rule.scale, rule.pow, rule.min_divisor

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        norm = self.norm
        x = as_maps(inputs[0], norm.image)
        if norm.kind == "cmrnorm":
            return functional.local_response_norm(
                x, norm.size, self.scale, self.pow, self.least, blocked=norm.blocked
            )
        kinds = {"rnorm": functional.response_norm2d, "cnorm": functional.contrast_norm2d}
        return kinds[norm.kind](x, norm.size, self.scale, self.pow, 1.0)


class MaxPiece(Piece):
    """eltmax: inputs as the rows of one image, and a pool as high as it; ties as of pools."""

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        rows = [as_vector(x) for x in inputs]
        image = functional.concat(rows).reshape(-1, 1, len(rows), rows[0].shape[1])
        return functional.max_pool2d(image, (len(rows), 1), ties="all").flatten(1)


class SumPiece(Piece):
    """eltsum."""

    def __init__(self, definition: EltSum) -> None:
        super().__init__()
        self.coefficients = definition.coefficients

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        alike = all(x.shape == inputs[0].shape for x in inputs)
        parts = list(inputs) if alike else [as_vector(x) for x in inputs]
        return functional.weighted_sum(parts, self.coefficients)


class ConcatPiece(Piece):
    """Vectors one behind the other; maps of one size as channels, which is the same order."""

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        maps = all(x.ndim == 4 and x.shape[2:] == inputs[0].shape[2:] for x in inputs)
        return functional.concat(list(inputs) if maps else [as_vector(x) for x in inputs])


class SoftmaxPiece(Piece):
    """softmax, over all numbers of a case."""

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        return functional.softmax(as_vector(inputs[0]), 1)


class ApplyPiece(Piece):
    """A neuron as a layer of its own."""

    def __init__(self, definition: Apply) -> None:
        super().__init__()
        self.function = definition.function

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        return apply_neuron(inputs[0], self.function)


class DropPiece(Piece):
    """hs: drops without scaling the rest; where disabled, and in tests, it scales instead."""

    def __init__(self, definition: HalfSparse, rule: LayerRule) -> None:
        super().__init__()
        self.keep = definition.keep
        self.enabled = rule.enabled is not False

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        if self.enabled:
            return functional.dropout(inputs[0], 1.0 - self.keep, rescale=False)
        return functional.activation(inputs[0], "linear", self.keep, 0.0)


class ImagePiece(Piece):
    """blur, nailbed and href."""

    def __init__(self, definition: Blur | Nailbed | Mirror) -> None:
        super().__init__()
        self.definition = definition

    def forward(self, *inputs: SymbolicTensor) -> SymbolicTensor:
        definition = self.definition
        x = as_maps(inputs[0], definition.image)
        if isinstance(definition, Blur):
            return functional.blur(x, definition.size, definition.deviation)
        if isinstance(definition, Nailbed):
            return functional.nailbed(x, definition.stride)
        return functional.mirror(x)

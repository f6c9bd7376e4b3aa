"""Layers of a network file as modules: nn's operations with the meaning that they had in 2012."""

from __future__ import annotations

from convloom.convnet.layers import (
    Apply,
    Blur,
    Concat,
    Conv,
    EltMax,
    EltSum,
    Extent,
    Fc,
    HalfSparse,
    Mirror,
    Nailbed,
    Norm,
    Pool,
    Softmax,
    TreeFc,
)
from convloom.convnet.modules.base import Piece, Shared
from convloom.convnet.modules.conv import ConvPiece
from convloom.convnet.modules.dense import FcPiece
from convloom.convnet.modules.fixed import (
    ApplyPiece,
    ConcatPiece,
    DropPiece,
    ImagePiece,
    MaxPiece,
    NormPiece,
    PoolPiece,
    SoftmaxPiece,
    SumPiece,
)
from convloom.convnet.modules.tree import TreeFcPiece
from convloom.convnet.network import Layer
from convloom.convnet.rules import LayerRule
from convloom.ir.errors import ConvloomError


def piece_of(
    layer: Layer, inputs: tuple[Extent, ...], rule: LayerRule, shared: list[Shared]
) -> Piece:
    """The module of a layer that is neither data nor cost.

    Args:
        inputs: what flows in.
        shared: for every input whose weights serve, if not its own.

    Raises:
        ConvloomError: what the layer asks for is not supported.
    """
    definition = layer.definition
    if isinstance(definition, Conv):
        return ConvPiece(definition, shared, layer.name)
    if isinstance(definition, Fc):
        return FcPiece(definition, inputs, shared)
    if isinstance(definition, TreeFc):
        return TreeFcPiece(definition, inputs[0], layer.name)
    if isinstance(definition, Pool):
        return PoolPiece(definition, rule)
    if isinstance(definition, Norm):
        return NormPiece(definition, rule)
    if isinstance(definition, HalfSparse):
        return DropPiece(definition, rule)
    if isinstance(definition, Blur | Nailbed | Mirror):
        return ImagePiece(definition)
    if isinstance(definition, EltSum):
        return SumPiece(definition)
    if isinstance(definition, EltMax):
        return MaxPiece()
    if isinstance(definition, Concat):
        return ConcatPiece()
    if isinstance(definition, Apply):
        return ApplyPiece(definition)
    if isinstance(definition, Softmax):
        return SoftmaxPiece()
    raise ConvloomError(f"layers of type {layer.type} are not supported yet")

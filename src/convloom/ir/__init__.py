"""The intermediate representation: tensors, nodes and graphs. It imports nothing of convloom."""

from convloom.ir.errors import ConvloomError, ShapeError
from convloom.ir.graph import Graph, GraphBuilder, Node, Operation, Role
from convloom.ir.plan import (
    GRADIENTS,
    PERSISTENT,
    TRANSIENT,
    Buffer,
    Plan,
    Region,
    Segment,
    Selection,
    Step,
)
from convloom.ir.spec import KRSC, NHWC, ROW_MAJOR, Layout, TensorSpec, flattened_nhwc

__all__ = [
    "GRADIENTS",
    "KRSC",
    "NHWC",
    "PERSISTENT",
    "ROW_MAJOR",
    "TRANSIENT",
    "Buffer",
    "ConvloomError",
    "Graph",
    "GraphBuilder",
    "Layout",
    "Node",
    "Operation",
    "Plan",
    "Region",
    "Role",
    "Segment",
    "Selection",
    "ShapeError",
    "Step",
    "TensorSpec",
    "flattened_nhwc",
]

"""What operands of products are kept as on chip (kernels/cuda/onchip/number.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

from convloom.ops.precision import BF16, TF32


@dataclass(frozen=True)
class Operand:
    """A format.

    Attributes:
        precision: its name.
        nbytes: of one.
        spaced: whether lanes read planes word by word, so that these must lie in other banks.
    """

    precision: str
    nbytes: int
    spaced: bool = False

    @property
    def together(self) -> int:
        """Channels that lie side by side: 16 bytes."""
        return 16 // self.nbytes

    @property
    def depth(self) -> int:
        """Products of an mma."""
        return 32 // self.nbytes


BFLOAT16, TENSOR_FLOAT32 = Operand(BF16, 2), Operand(TF32, 4, spaced=True)
#: {precision: its format}.
OPERANDS = {format.precision: format for format in (BFLOAT16, TENSOR_FLOAT32)}

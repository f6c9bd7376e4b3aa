"""Kernels that carry a small network through its whole training step on chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from convloom.backends.cuda.device import Chip
from convloom.backends.cuda.launch import Argument, CudaLaunch, Fed, Phase, Tensor
from convloom.backends.cuda.onchip.config import candidates
from convloom.backends.cuda.onchip.exact import Exact
from convloom.backends.cuda.onchip.operand import BFLOAT16, OPERANDS
from convloom.backends.cuda.onchip.plan import GRADIENTS, LOGITS, LOSS, OnChip, room_for
from convloom.backends.cuda.onchip.stages import Stages, UnfitError, input_order, stages_of
from convloom.backends.cuda.onchip.together import together
from convloom.backends.cuda.selectors.common import ABSENT, Builder, Specs, same_order
from convloom.ir import Node, Selection
from convloom.ops import (
    SGD,
    Chain,
    ChainEvaluate,
    ChainGradient,
    ChainUpdate,
    SoftmaxCrossEntropy,
    TopKCorrect,
)
from convloom.ops.chain import Operands
from convloom.ops.precision import FP32

#: Parameters that the kernels take.
_PARAMETERS = 12
_THREADS = 256
#: What the kernels take last where their batch lies in a data set (fed.py), null otherwise; hyper
#: and counter are the step's own tensors.
_STEP_FED = ("images", "labels", "scale", "shift", "order", "draws", "clock", "place")
_REDUCE_FED = ("rates", "hyper", "counter", "clock", "losses", "corrects", "place")


def refusal(node: Node, specs: Specs, chip: Chip) -> str:
    """Why a chain does not qualify, in one phrase; empty if it does."""
    try:
        _build(node, specs, chip)
    except UnfitError as reason:
        return str(reason)
    return ""


def on_chip(node: Node, specs: Specs, chip: Chip) -> Selection | None:
    """Serves chains whose blocks need no more shared memory than the chip has."""
    try:
        return _build(node, specs, chip)
    except UnfitError:
        return None


def _build(node: Node, specs: Specs, chip: Chip) -> Selection:
    shared = _Launches(node, specs, chip)
    made = shared.selection()
    if shared.whole or not isinstance(node.op, ChainUpdate):
        return made
    # Many networks fill the GPU with blocks that each carry whole images.
    try:
        alone = _Launches(node, specs, replace(chip, clusters=False)).selection()
    except UnfitError:
        return made
    launch = replace(made.launch, together=alone.launch.together)
    workspace = max(made.workspace, alone.workspace)
    assert made.segment is not None
    segment = replace(made.segment, together=launch.together is not None)
    return replace(made, launch=launch, workspace=workspace, segment=segment)


class _Launches:
    """The launches of a chain. Raises UnfitError on construction, where it does not qualify."""

    def __init__(self, node: Node, specs: Specs, chip: Chip) -> None:
        self.node, self.chain = node, cast(Chain, node.op)
        self.names: Operands[str] = self.chain.operands(node.inputs)
        self.n = specs[self.names.x].shape[0]
        if not chip.shared:
            raise UnfitError("the GPU is older than compute capability 8.0")
        self._check(specs)
        row = input_order(specs[self.names.x])
        stages = stages_of(self.chain, [specs[name] for name in node.inputs])
        if not stages.convs and not row:
            raise UnfitError("its first stage is fully connected and reads channels-last images")
        self.kernel = self._kernel(stages, chip)
        self.multiprocessors = chip.multiprocessors
        self.bulk = self.kernel.config.bulk and chip.clusters
        self.build = Builder(specs)
        self.shared = self.kernel.shared
        self.constants = self.kernel.constants(row) | {"FED": 0}
        self.row = row

    def _kernel(self, stages: Stages, chip: Chip) -> OnChip:
        """Blocks share images where a batch has fewer of these than the GPU takes blocks."""
        exact = self.chain.precision == FP32
        form = Exact if exact else OnChip
        operand = OPERANDS.get(self.chain.precision, BFLOAT16)
        room = room_for(self.n, chip.multiprocessors)
        for config in candidates(chip.clusters, room, self.chain.precision):
            kernel = form.best(stages, self._mode(), chip.shared, operand, config)
            if kernel.fits and kernel.config.split == config.split:
                break
        return kernel

    @property
    def whole(self) -> bool:
        """Whether a block carries whole images."""
        return self.kernel.config.split == 1

    def selection(self) -> Selection:
        kernel, build = self.kernel, self.build
        packed = build.workspace(kernel.packed) if kernel.packed else ABSENT
        gradients = self._mode() == GRADIENTS
        blocks = kernel.blocks(self.n)
        slab = build.workspace(4 * blocks * sum(kernel.slabs)) if sum(kernel.slabs) else ABSENT
        kept = build.workspace(kernel.element * self.n * kernel.kept) if gradients else ABSENT
        losses = build.workspace(4 * self.n) if self.chain.has_loss else ABSENT
        ranks = build.workspace(4 * self.n) if self.chain.has_loss else ABSENT
        parameters = self._padded([(Tensor(name),) for name in self.names.parameters], (ABSENT,))
        build.each(
            "onchip/pack", self.constants, (*parameters, packed), kernel.pack_threads, _THREADS
        )
        arguments: tuple[Argument, ...] = (
            Tensor(self.names.x),
            _tensor(self.names.target),
            _tensor(self.names.counter),
            _tensor(self.names.dloss),
            *parameters,
            packed,
            slab,
            kept,
            losses,
            ranks,
            Tensor(self.node.outputs[0]),
            self._smoothing(),
            self.n,
            *len(_STEP_FED) * (ABSENT,),
        )
        constants = self.constants | self._chained() | {"BULK": int(self.bulk)}
        step = "onchip/step"
        if kernel.cluster > 1:
            step, constants = "onchip/cluster_step", constants | {"CLUSTER": kernel.cluster}
        build.add(step, constants, arguments, blocks, kernel.config.threads, self.shared)
        if self.chain.has_loss:
            self._reduce((slab, kept, losses, ranks), packed, blocks)
        made = build.selection("onchip", "onchip")
        launch = self._launch(made.launch.phases)
        inputs = [build.specs[name] for name in self.node.inputs]
        segment = kernel.segment(self.chain.titles(inputs), self.n)
        return replace(
            made,
            launch=launch,
            segment=replace(segment, together=launch.together is not None),
            lasting=isinstance(self.chain, ChainUpdate),
        )

    def _launch(self, phases: tuple[Phase, ...]) -> CudaLaunch:
        """The launches of a batch, and those of steps that take their batches from a data set."""
        pack, rest = (phases[:1], phases[1:]) if self.kernel.packed else ((), phases)
        fed = self._fed(rest) if self.chain.has_loss and self.row else ()
        many = None
        if fed and self.whole and isinstance(self.chain, ChainUpdate | ChainEvaluate):
            many = together(self.kernel, (*pack, *fed))
        if isinstance(self.chain, ChainUpdate):
            # The update keeps the packed weights new, so they are made but once.
            return CudaLaunch(rest, pack, fed, many)
        return CudaLaunch(phases, fed=(*pack, *fed) if fed else (), together=many)

    def _fed(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """The launches of a step and its reduction that take their batch from a data set."""
        counter, hyper = _tensor(self.names.counter), _tensor(self.names.hyper)
        ends: tuple[tuple[Argument | Fed, ...], ...] = (
            tuple(map(Fed, _STEP_FED)),
            tuple(
                {"hyper": hyper, "counter": counter}.get(name, Fed(name)) for name in _REDUCE_FED
            ),
        )
        return tuple(
            replace(phase, arguments=(*phase.arguments[: -len(end)], *end))
            for phase, end in zip(phases, ends, strict=True)
        )

    def _chained(self) -> dict[str, int]:
        """Whether the kernels begin early and wait; not for packing, which does neither."""
        return {"CHAINED": int(self.kernel.config.chained)}

    def _reduce(self, workspaces: tuple[Argument, ...], packed: Argument, slabs: int) -> None:
        kernel, top = self.kernel, cast(TopKCorrect, self.chain.stages[-1])
        room = self.multiprocessors if kernel.config.spread else 0
        reduction = kernel.reduction(self.n, room)
        constants = self.constants | self._chained() | reduction.constants
        constants |= {
            "GRADIENTS": int(self._mode() == GRADIENTS),
            "TOP": top.k,
            "AHEAD": int(kernel.config.ahead),
            "RULE": 0,
            "CLIP": 0,
            "NESTEROV": 0,
        }
        if isinstance(self.chain, ChainUpdate):
            rule = self.chain.update
            constants |= {"RULE": 1 if isinstance(rule, SGD) else 2}
            constants |= {"NESTEROV": int(isinstance(rule, SGD) and rule.nesterov)}
        arguments: tuple[Argument, ...] = (
            *workspaces,
            Tensor(self.node.outputs[1]),
            Tensor(self.node.outputs[2]),
            _tensor(self.names.hyper),
            packed,
            slabs,
            self.n,
            *self._padded(self._parameters(), (ABSENT, ABSENT, ABSENT, ABSENT, 0.0, 0.0)),
            *len(_REDUCE_FED) * (ABSENT,),
        )
        blocks, shared = reduction.blocks, reduction.shared
        self.build.add("onchip/reduce", constants, arguments, blocks, _THREADS, shared)

    def _parameters(self) -> list[tuple[Argument, ...]]:
        """What the reducing kernel takes for each parameter."""
        if not isinstance(self.chain, ChainGradient):
            return []
        count, outputs = self.chain.count, self.node.outputs
        rows: list[tuple[Argument, ...]] = []
        for i in range(count):
            gradient = Tensor(outputs[3 + i])
            if isinstance(self.chain, ChainUpdate):
                rule = self.chain.update
                states = [
                    Tensor(outputs[3 + (2 + state) * count + i]) for state in range(rule.states)
                ]
                first, second = states[0], states[1] if rule.states > 1 else ABSENT
                value = Tensor(outputs[3 + count + i])
                rates = float(rule.rate[i]), float(rule.decay[i])
                rows.append((value, gradient, first, second, *rates))
            else:
                rows.append((ABSENT, gradient, ABSENT, ABSENT, 0.0, 0.0))
        return rows

    def _padded(
        self, rows: list[tuple[Argument, ...]], absent: tuple[Argument, ...]
    ) -> tuple[Argument, ...]:
        rows = rows + (_PARAMETERS - len(rows)) * [absent]
        return tuple(argument for row in rows for argument in row)

    def _mode(self) -> int:
        if isinstance(self.chain, ChainGradient):
            return GRADIENTS
        return LOSS if isinstance(self.chain, ChainEvaluate) else LOGITS

    def _smoothing(self) -> float:
        loss = self.chain.stages[-2] if self.chain.has_loss else None
        return float(loss.label_smoothing) if isinstance(loss, SoftmaxCrossEntropy) else 0.0

    def _check(self, specs: Specs) -> None:
        chain = self.chain
        if self.n == 0:
            raise UnfitError("the batch is empty")
        if chain.count > _PARAMETERS:
            raise UnfitError(f"it has {chain.count} parameters, the kernels take {_PARAMETERS}")
        if isinstance(chain, ChainGradient) and chain.needs_dx:
            raise UnfitError("the gradient of its input is wanted")
        if isinstance(chain, ChainGradient):
            states = 1 + len(self.names.states) // max(1, chain.count)
            made = self.node.outputs[3 : 3 + chain.count]
            alike = zip((*made, *self.names.states), states * self.names.parameters, strict=True)
            for name, parameter in alike:
                if not same_order(specs[name].layout, specs[parameter].layout):
                    raise UnfitError("a gradient or state does not lie as its parameter does")


def _tensor(name: str | None) -> Argument:
    return ABSENT if name is None else Tensor(name)


LADDER = {
    (name, "onchip"): on_chip
    for name in ("ChainForward", "ChainEvaluate", "ChainGradient", "ChainUpdate")
}

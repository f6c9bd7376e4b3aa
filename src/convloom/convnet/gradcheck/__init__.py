"""Whether the gradients of a network file are right: against differences, and device by device."""

from __future__ import annotations

from convloom.convnet.gradcheck.check import check_grads, check_net, smaller
from convloom.convnet.gradcheck.report import GradientReport, Row

__all__ = ["GradientReport", "Row", "check_grads", "check_net", "smaller"]

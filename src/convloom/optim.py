"""Optimisers and learning rate schedules under their public name, ``cl.optim``."""

from convloom.training.optim import SGD, AdamW, Optimizer, OptimizerError
from convloom.training.schedules import (
    Constant,
    Cosine,
    OneCycle,
    Schedule,
    ScheduleError,
    StepDecay,
    WarmUp,
    parse_schedule,
)

__all__ = [
    "SGD",
    "AdamW",
    "Constant",
    "Cosine",
    "OneCycle",
    "Optimizer",
    "OptimizerError",
    "Schedule",
    "ScheduleError",
    "StepDecay",
    "WarmUp",
    "parse_schedule",
]

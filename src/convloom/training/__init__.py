"""Training: optimisers, schedules, the engine, the Trainer, its history and checkpoints."""

from convloom.nn import runtime
from convloom.nn.serialization import load
from convloom.training.callbacks import Callback, Moment
from convloom.training.history import History
from convloom.training.interrupt import TrainingInterrupted
from convloom.training.loop import NonFiniteError
from convloom.training.many import Ensemble, Member, train_many
from convloom.training.prediction import predict
from convloom.training.step import TrainingStep, compile, vjp
from convloom.training.trainer import Trainer

runtime.set_predictor(predict)

__all__ = [
    "Callback",
    "Ensemble",
    "History",
    "Member",
    "Moment",
    "NonFiniteError",
    "Trainer",
    "TrainingInterrupted",
    "TrainingStep",
    "compile",
    "load",
    "predict",
    "train_many",
    "vjp",
]

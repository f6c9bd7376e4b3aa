"""Training: optimisers, schedules, the engine, the Trainer, its history and checkpoints."""

from convloom.nn import runtime
from convloom.nn.serialization import load
from convloom.training.callbacks import Callback, Moment
from convloom.training.ensemble import Ensemble, Member
from convloom.training.extraction import FeatureError, features, write_features
from convloom.training.history import History
from convloom.training.interrupt import TrainingInterrupted
from convloom.training.layers import LayerError
from convloom.training.loop import NonFiniteError
from convloom.training.many import train_many
from convloom.training.prediction import predict
from convloom.training.step import TrainingStep, compile, vjp
from convloom.training.trainer import Trainer
from convloom.training.views import multiview

runtime.set_predictor(predict)

__all__ = [
    "Callback",
    "Ensemble",
    "FeatureError",
    "History",
    "LayerError",
    "Member",
    "Moment",
    "NonFiniteError",
    "Trainer",
    "TrainingInterrupted",
    "TrainingStep",
    "compile",
    "features",
    "load",
    "multiview",
    "predict",
    "train_many",
    "vjp",
    "write_features",
]

"""Predictors of output lengths."""

from evenflow_worker.predict.batches import BatchPredictor
from evenflow_worker.predict.class_prior import ClassPriorPredictor
from evenflow_worker.predict.guarded import GuardedPredictor
from evenflow_worker.predict.length_model import LengthModel, LinearTokenModel, Prompt, load_length_model
from evenflow_worker.predict.protocol import Predictor
from evenflow_worker.predict.quantile import QuantilePredictor

__all__ = [
    "BatchPredictor",
    "ClassPriorPredictor",
    "GuardedPredictor",
    "LengthModel",
    "LinearTokenModel",
    "Predictor",
    "Prompt",
    "QuantilePredictor",
    "load_length_model",
]

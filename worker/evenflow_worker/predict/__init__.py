"""Predictors of output lengths."""

from evenflow_worker.predict.class_prior import ClassPriorPredictor
from evenflow_worker.predict.guarded import GuardedPredictor
from evenflow_worker.predict.protocol import Predictor

__all__ = ["ClassPriorPredictor", "GuardedPredictor", "Predictor"]

"""Replays request traces against Services, in engine time."""

from evenflow_devcluster.replay.client import Progress, Replay, ReplaySettings
from evenflow_devcluster.replay.result import ReplayResult, RequestResult, summarise
from evenflow_devcluster.replay.traces import TraceError, TraceRequest, classify, cut, merge, read_trace

__all__ = [
    "Progress",
    "Replay",
    "ReplayResult",
    "ReplaySettings",
    "RequestResult",
    "TraceError",
    "TraceRequest",
    "classify",
    "cut",
    "merge",
    "read_trace",
    "summarise",
]

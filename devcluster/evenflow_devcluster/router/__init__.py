"""Plays kube-proxy and gateway: one listening address per Service, least outstanding requests first."""

from evenflow_devcluster.router.proxy import Counters, ProxySettings
from evenflow_devcluster.router.router import Router

__all__ = ["Counters", "ProxySettings", "Router"]

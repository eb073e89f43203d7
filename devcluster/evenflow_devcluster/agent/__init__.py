"""The node agent: plays kubelet for nodes on one computer."""

from evenflow_devcluster.agent.agent import NodeAgent
from evenflow_devcluster.agent.settings import AgentSettings, NodeShape

__all__ = ["AgentSettings", "NodeAgent", "NodeShape"]

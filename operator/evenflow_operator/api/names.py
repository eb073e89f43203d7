"""The resource's names, and the bounds that several of its parts share."""

from typing import Final

from evenflow_contract.names import DEFAULT_CLASS, MAX_CLASS_NAME, MAX_CLASSES, MAX_POOL_NAME, NAME_PATTERN

GROUP: Final = "serving.evenflow.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "LLMServingPool"
LIST_KIND: Final = "LLMServingPoolList"
PLURAL: Final = "llmservingpools"
SINGULAR: Final = "llmservingpool"
SHORT_NAME: Final = "llmpool"
CATEGORY: Final = "evenflow"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"
SCALE_MANAGER: Final = "evenflow-autoscaler"
"""The field manager under which the built-in autoscaler writes replicas."""

MAX_REPLICAS: Final = 1000
MAX_STATIC_SLOTS: Final = 128
MAX_TOKENS: Final = 10_000_000
MAX_KV_TOKENS: Final = 1_000_000_000
MAX_DECISIONS: Final = 20
MAX_MICRO: Final = 1_000_000_000_000
MICRO: Final = 1_000_000

__all__ = [
    "API_VERSION",
    "CATEGORY",
    "CRD_NAME",
    "DEFAULT_CLASS",
    "GROUP",
    "KIND",
    "LIST_KIND",
    "MAX_CLASSES",
    "MAX_CLASS_NAME",
    "MAX_DECISIONS",
    "MAX_KV_TOKENS",
    "MAX_MICRO",
    "MAX_POOL_NAME",
    "MAX_REPLICAS",
    "MAX_STATIC_SLOTS",
    "MAX_TOKENS",
    "MICRO",
    "NAME_PATTERN",
    "PLURAL",
    "SCALE_MANAGER",
    "SHORT_NAME",
    "SINGULAR",
    "VERSION",
]

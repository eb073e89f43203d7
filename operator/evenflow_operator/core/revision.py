"""The revision of a pool: a hash of the parts of its spec that a running pod cannot take over.

A new release of the operator must restart nothing, so the hash names its fields one by one. A field that a later
release adds to the list joins only where it differs from its default.
"""

import hashlib
import json
from typing import Any

from evenflow_operator.api.enums import EngineType
from evenflow_operator.api.spec import LLMServingPoolSpec

TEMPLATE_VERSION = "2"
"""Generation of the pod template in core.render; stored on pods for support, never a reason to restart one."""

REVISION_LENGTH = 10


def pod_relevant(spec: LLMServingPoolSpec) -> dict[str, Any]:
    """The parts of the spec that end up in a pod's command, environment, image or resources.

    The worker image is left out: a slot keeps its own until its next roll.
    """
    engine = spec.engine
    facts: dict[str, Any] = {
        "model": spec.model.to_dict(),
        "accelerator": spec.accelerator.to_dict(),
        "engine": {
            "type": engine.type.value,
            "maxNumSeqs": engine.max_num_seqs,
            "maxNumBatchedTokens": engine.max_num_batched_tokens,
        },
    }
    if engine.type is EngineType.VLLM:
        facts["engine"]["vllm"] = engine.vllm.to_dict()
    else:
        facts["engine"]["simulated"] = engine.simulated.to_dict()
        facts["engine"]["kvCacheTokens"] = engine.kv_cache_tokens
    if spec.pod_template is not None:
        facts["podTemplate"] = spec.pod_template.to_dict()
    if spec.admin_token_secret_ref is not None:
        facts["adminTokenSecretRef"] = spec.admin_token_secret_ref.to_dict()
    if spec.rollout.restarted_at is not None:
        facts["restartedAt"] = spec.rollout.restarted_at
    return facts


def revision_of(spec: LLMServingPoolSpec) -> str:
    """Ten hexadecimal digits, a valid label value."""
    canonical = json.dumps(pod_relevant(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:REVISION_LENGTH]

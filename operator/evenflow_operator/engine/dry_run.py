"""Asking the API server whether it would take a pod, and what its answer means for the pod that is made later."""

import logging

from evenflow_operator.core.plan import DryRunPod
from evenflow_operator.core.slots.dry_run import Answer
from evenflow_operator.outages import unless_outage
from evenflow_operator.ports import ApiError, Cluster, PoolRecord

_QUOTA_EXCEEDED = "exceeded quota"
"""Of a quota just as large as the pool: it has room once the pod before is gone. Quotas are looked at last, so that
everything else was in order."""
_QUOTA_UNKNOWN = "status unknown for quota"
"""Nobody has counted yet what the namespace uses."""
_NO_DRY_RUNS = "does not support dry run"
"""An admission webhook of old that declares side effects: nothing can be known before the pod is made."""

log = logging.getLogger(__name__)


async def ask(cluster: Cluster, record: PoolRecord, command: DryRunPod) -> Answer:
    """Never raises: what isn't a clear no is a yes or no answer."""
    try:
        await cluster.dry_run_pod(record.namespace, command.manifest)
    except ApiError as error:
        if _holds_only_now(error):
            return Answer(command)
        problem = f"create pod {command.manifest['metadata']['name']}, tried as a dry run: {error}"
        if not _open(error):
            return Answer(command, problem, refused=True)
        log.warning("pool %s/%s: %s; trying again", *record.key, problem, extra=unless_outage(error))
        return Answer(command, problem, retry_after=error.retry_after or 0.0)
    return Answer(command)


def _holds_only_now(error: ApiError) -> bool:
    """What would not keep the pod from being made once its place is free: another one that has its name, too."""
    if error.status == 409:
        return True
    return (error.status == 403 and _QUOTA_EXCEEDED in error.message) or (
        error.status == 400 and _NO_DRY_RUNS in error.message
    )


def _open(error: ApiError) -> bool:
    """Whether the API server has neither taken nor refused it."""
    gone = error.not_found or error.namespace_terminating
    return error.transient or gone or (error.status == 403 and _QUOTA_UNKNOWN in error.message)

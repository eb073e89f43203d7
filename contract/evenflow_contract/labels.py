"""Labels and annotations on the pods and Services of a pool, and the names derived from a pool."""

from collections.abc import Iterable, Mapping

PREFIX = "evenflow.dev"
CLASS_PREFIX = "class.evenflow.dev"

POOL = f"{PREFIX}/pool"
SLOT = f"{PREFIX}/slot"
REVISION = f"{PREFIX}/revision"
ATTEMPT = f"{PREFIX}/attempt"
SERVING = f"{PREFIX}/serving"
"""`"true"` once the pod is ready and placed; removed first when it drains."""
TRAFFIC_CLASS = f"{PREFIX}/traffic-class"
"""On Services only: the class that the Service routes."""

WORKER_CONFIG = f"{PREFIX}/worker-config"
"""Annotation with the worker config document: the only truth about a worker's settings."""
TEMPLATE_VERSION = f"{PREFIX}/template-version"
"""Annotation: which generation of the operator's pod template rendered this pod; never a reason to restart it."""
WORKER_IMAGE = f"{PREFIX}/worker-image"
"""Annotation: the image that carries the pod's worker, or its simulated engine; the revision doesn't tell it."""
DRAIN_STARTED = f"{PREFIX}/drain-started"
"""Annotation, RFC 3339: when the operator began to drain this pod, so that the timeout survives a restart of it."""
DRAIN_REASON = f"{PREFIX}/drain-reason"
CLASS_REMOVED = f"{PREFIX}/class-removed"
"""Annotation of a Service, RFC 3339: since when its class is gone from the spec."""

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "evenflow"
"""Its value on whatever the operator makes."""

TRUE = "true"
ENGINE_CONTAINER = "engine"


def class_label(traffic_class: str) -> str:
    return f"{CLASS_PREFIX}/{traffic_class}"


def classes_of(labels: Mapping[str, str]) -> frozenset[str]:
    """The traffic classes that a pod's labels say it serves."""
    prefix = CLASS_PREFIX + "/"
    return frozenset(key[len(prefix) :] for key, value in labels.items() if key.startswith(prefix) and value == TRUE)


def class_labels(classes: Iterable[str]) -> dict[str, str]:
    return {class_label(name): TRUE for name in sorted(classes)}


def service_name(pool: str, traffic_class: str) -> str:
    """`<pool>` for the class `default`, `<pool>-<class>` for every other."""
    return pool if traffic_class == "default" else f"{pool}-{traffic_class}"


def service_selector(pool: str, traffic_class: str) -> dict[str, str]:
    selector = {POOL: pool, SERVING: TRUE}
    if traffic_class != "default":
        selector[class_label(traffic_class)] = TRUE
    return selector

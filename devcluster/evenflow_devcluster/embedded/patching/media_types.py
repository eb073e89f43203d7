"""The media types by which a PATCH says what kind of patch it is."""

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def accepted(*, custom: bool) -> tuple[str, ...]:
    """What a resource takes: a custom one has no merge keys for a strategic merge patch."""
    return (JSON_PATCH, MERGE, APPLY) if custom else (JSON_PATCH, MERGE, STRATEGIC, APPLY)

"""LIST: selectors, pages, and the version a list is of."""

import base64
import binascii
import json
from collections.abc import Mapping

from evenflow_devcluster.embedded.errors import StatusError, bad_request, expired
from evenflow_devcluster.embedded.http.requests import Target, number, predicate_of
from evenflow_devcluster.embedded.http.shapes import Shape, shown_list
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.store.memory import Key, Record

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You must start a new list "
    "without the continue parameter."
)


def list_page(api: Api, target: Target, query: Mapping[str, str], shape: Shape) -> bytes:
    """The JSON of one page. Raises 400 for bad parameters, 410 for a forgotten version, 504 for one to come."""
    limit, token = number(query, "limit"), query.get("continue")
    records, version, start = _chosen(api, target, query, token)
    predicate = predicate_of(target, query)
    if predicate is not None:
        records = [(key, record) for key, record in records if predicate(record.object)]
    pairs = sorted(records, key=lambda pair: pair[0])
    if start is not None:
        pairs = [pair for pair in pairs if pair[0] > start]
    metadata: Object = {"resourceVersion": str(version)}
    if limit and len(pairs) > limit:
        last = pairs[limit - 1][0]
        metadata["continue"] = _token(version, last)
        if predicate is None:
            metadata["remainingItemCount"] = len(pairs) - limit
        pairs = pairs[:limit]
    return shown_list(api, target.resource, (record for _, record in pairs), metadata, shape)


def _chosen(
    api: Api, target: Target, query: Mapping[str, str], token: str | None
) -> tuple[list[tuple[Key, Record]], int, Key | None]:
    store, name = api.store, target.resource.qualified
    asked, match = query.get("resourceVersion") or "", query.get("resourceVersionMatch") or ""
    start: Key | None = None
    if match not in ("", "Exact", "NotOlderThan"):
        raise bad_request(f'resourceVersionMatch: Unsupported value: "{match}": use Exact or NotOlderThan')
    if match and not asked:
        raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if token:
        if asked not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        version, start = _from_token(token)
        try:
            state = store.state_at(name, version)
        except StatusError:
            raise expired(_TOO_OLD) from None
    else:
        wanted = number({"resourceVersion": asked}, "resourceVersion") or 0
        if match == "Exact" and wanted == 0:
            raise bad_request('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
        if wanted > store.version:
            raise _too_large(wanted, store.version)
        version = wanted if match == "Exact" else store.version
        state = store.state_at(name, version) if match == "Exact" else store.bucket(name).records
    space = target.namespace
    return [pair for pair in state.items() if space is None or pair[0][0] == space], version, start


def _too_large(wanted: int, current: int) -> StatusError:
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return StatusError(504, "Timeout", message, details={"causes": [cause]}, retry_after=1)


def _token(version: int, last: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *last]).encode()).decode()


def _from_token(token: str) -> tuple[int, Key]:
    try:
        version, space, name = json.loads(base64.urlsafe_b64decode(token))
        return int(version), (str(space), str(name))
    except (ValueError, TypeError, binascii.Error):
        raise bad_request("continue key is not valid") from None

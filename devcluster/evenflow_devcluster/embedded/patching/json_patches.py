"""Merge patch (RFC 7386) and JSON patch (RFC 6902). Neither changes its arguments."""

from typing import Any

from evenflow_devcluster.embedded.errors import FieldError, StatusError, bad_request
from evenflow_devcluster.embedded.jsonvalues import copied

MAX_OPERATIONS = 10_000


def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    result: dict[str, Any] = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Raises 400 for a malformed patch and 422 for one that can't be applied (a failed `test` among them)."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise StatusError(413, "RequestEntityTooLarge", f"a JSON patch has at most {MAX_OPERATIONS} operations")
    holder = {"": copied(target)}
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request(f"invalid JSON patch operation {operation!r}: it needs op and path")
        _apply(holder, operation)
    return holder.get("")


def _apply(holder: dict[str, Any], operation: dict[str, Any]) -> None:
    path = operation["path"]
    match operation.get("op"):
        case "add":
            _add(holder, path, copied(_given(operation, "value")))
        case "remove":
            _remove(holder, path)
        case "replace":
            _find(holder, path)
            _replace(holder, path, copied(_given(operation, "value")))
        case "move":
            value = _find(holder, str(_given(operation, "from")))
            _remove(holder, operation["from"])
            _add(holder, path, value)
        case "copy":
            _add(holder, path, copied(_find(holder, str(_given(operation, "from")))))
        case "test":
            if not _same(_find(holder, path, missing_ok=True), operation.get("value")):
                raise _unprocessable(f"testing value {path} failed", path)
        case other:
            raise bad_request(f"invalid JSON patch operation {other!r}")


def _given(operation: dict[str, Any], key: str) -> Any:
    if key not in operation:
        raise bad_request(f"JSON patch operation {operation.get('op')!r} needs {key!r}")
    return operation[key]


def _unprocessable(message: str, path: str) -> StatusError:
    error = FieldError(path, message)
    message = f"the server rejected our request due to an error in our request: {message}"
    return StatusError(422, "Invalid", message, details={"causes": [error.cause()]})


def _tokens(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise bad_request(f"JSON patch path {path!r} must start with '/'")
    return [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")]


def _parent(holder: dict[str, Any], path: str) -> tuple[Any, str]:
    *way, last = _tokens(path)
    node: Any = holder
    for token in way:
        node = _step(node, token, path)
    return node, last


def _step(node: Any, token: str, path: str) -> Any:
    if isinstance(node, dict) and token in node:
        return node[token]
    if isinstance(node, list):
        return node[_index(node, token, path, len(node) - 1)]
    raise _unprocessable(f"missing path {path}", path)


def _index(node: list[Any], token: str, path: str, highest: int) -> int:
    if not token.isdigit() or (len(token) > 1 and token[0] == "0") or int(token) > highest:
        raise _unprocessable(f"invalid index {token!r} in {path}", path)
    return int(token)


def _find(holder: dict[str, Any], path: str, *, missing_ok: bool = False) -> Any:
    node, last = _parent(holder, path)
    if missing_ok and isinstance(node, dict):
        return node.get(last)
    return _step(node, last, path)


def _add(holder: dict[str, Any], path: str, value: Any) -> None:
    node, last = _parent(holder, path)
    if isinstance(node, dict):
        node[last] = value
    elif isinstance(node, list):
        node.insert(len(node) if last == "-" else _index(node, last, path, len(node)), value)
    else:
        raise _unprocessable(f"missing path {path}", path)


def _replace(holder: dict[str, Any], path: str, value: Any) -> None:
    node, last = _parent(holder, path)
    node[last if isinstance(node, dict) else int(last)] = value


def _remove(holder: dict[str, Any], path: str) -> None:
    node, last = _parent(holder, path)
    _step(node, last, path)
    del node[last if isinstance(node, dict) else int(last)]


def _same(left: Any, right: Any) -> bool:
    """Equality of JSON values: true is not 1, but 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)

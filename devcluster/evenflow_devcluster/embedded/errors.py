"""The errors of the Kubernetes API: `StatusError` carries what the server answers, `FieldError` names one bad field."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evenflow_devcluster.embedded.jsonvalues import Object

FieldErrorKind = Literal[
    "Invalid", "Required", "NotSupported", "Duplicate", "Forbidden", "TooLong", "TooMany", "TypeInvalid", "NotFound"
]

_PHRASES: dict[FieldErrorKind, str] = {
    "Invalid": "Invalid value",
    "Required": "Required value",
    "NotSupported": "Unsupported value",
    "Duplicate": "Duplicate value",
    "Forbidden": "Forbidden",
    "TooLong": "Too long",
    "TooMany": "Too many",
    "TypeInvalid": "Invalid value",
    "NotFound": "Not found",
}
_WITHOUT_VALUE = frozenset({"Required", "Forbidden", "TooLong", "TooMany"})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field, worded as Kubernetes words it. `path` is dotted, with list indices in brackets."""

    path: str
    message: str
    kind: FieldErrorKind = "Invalid"
    value: Any = None

    def __str__(self) -> str:
        text = f"{self.path}: {_PHRASES[self.kind]}"
        if self.kind not in _WITHOUT_VALUE:
            text += f": {_shown(self.value)}"
        return f"{text}: {self.message}" if self.message else text

    def cause(self) -> Object:
        return {"reason": f"FieldValue{self.kind}", "message": str(self).split(": ", 1)[1], "field": self.path}


def _shown(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text if len(text) <= 200 else text[:200] + "…"


class StatusError(Exception):
    """An answer of the API that isn't a success; `code` is the HTTP status, `reason` the machine-readable word."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Object | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after

    def body(self) -> Object:
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        }
        if self.reason:
            status["reason"] = self.reason
        if details:
            status["details"] = details
        return status


def success(details: Object) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _details(qualified: str, name: str) -> Object:
    plural, _, group = qualified.partition(".")
    details: Object = {"name": name, "kind": plural}
    if group:
        details["group"] = group
    return details


def not_found(qualified: str, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{qualified} "{name}" not found', details=_details(qualified, name))


def no_such_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(qualified: str, name: str) -> StatusError:
    message = f'{qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(qualified, name))


def conflict(qualified: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=_details(qualified, name))


def modified(qualified: str, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(qualified, name, why)


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    qualified = f"{kind}.{group}" if group else kind
    texts = [str(error) for error in errors]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details: Object = {"name": name, "kind": kind, "causes": [error.cause() for error in errors]}
    if group:
        details["group"] = group
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details=details)


def undecodable_patch(patched: Object, why: str) -> StatusError:
    """The object that a patch left can't be read; the real server's answer has neither name nor kind."""
    error = FieldError("patch", why, value=json.dumps(patched, separators=(",", ":"), default=str))
    return StatusError(422, "Invalid", f' "" is invalid: {error}', details={"causes": [error.cause()]})


def undeclared(kind: str, api_version: str, name: str, why: str) -> StatusError:
    """What was applied doesn't fit the schema: 500 without a reason, as the real server has it."""
    version = api_version if "/" in api_version else f"/{api_version}"
    return StatusError(500, "", f"failed to create typed patch object (/{name}; {version}, Kind={kind}): {why}")


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def forbidden(qualified: str, name: str, why: str, causes: list[Object] | None = None) -> StatusError:
    details = _details(qualified, name)
    if causes:
        details["causes"] = causes
    return StatusError(403, "Forbidden", f'{qualified} "{name}" is forbidden: {why}', details=details)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def unsupported(what: str) -> StatusError:
    """501: Kubernetes has this, the embedded server does not; `what` names it and, where there is one, the way out."""
    return StatusError(501, "NotImplemented", f"not supported by the embedded API server: {what}")


def method_not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(sent: str, accepted: Sequence[str]) -> StatusError:
    message = f"the body of the request was in an unknown format ({sent}) - accepted media types include: "
    return StatusError(415, "UnsupportedMediaType", message + ", ".join(accepted))

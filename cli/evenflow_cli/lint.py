"""`evenflow lint`: faults of LLMServingPool manifests, one line each: `FILE:path: what was found; remedy`."""

import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from evenflow_operator.api.errors import FieldError, SpecError
from evenflow_operator.api.messages import path_text, shown
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.api.rules import spec_schema, warnings
from evenflow_operator.api.structural import unknown_fields

MAX_FILE_BYTES = 3 * 1024 * 1024
MAX_DOCUMENTS = 1000
MAX_NODES = 200_000

_METADATA_FIELDS = (
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one document. `document` counts from 1."""

    file: str
    document: int
    path: str
    message: str

    def line(self, several: bool) -> str:
        suffix = f" (document {self.document})" if several else ""
        return f"{self.file}:{self.path or '(document)'}: {' '.join(self.message.split())}{suffix}"


class _Loader(yaml.SafeLoader):
    """YAML as kubectl reads it: times stay strings, and a key may stand only once."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _expanded_size(node, {}) > MAX_NODES:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"more than {MAX_NODES} values, aliases written out, or an alias inside itself",
                node.start_mark,
            )
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands twice in one object", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _expanded_size(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a document has with its aliases written out; infinite if it contains itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        known[id(node)] = 1 + sum(_expanded_size(child, known) for child in children)
    return known[id(node)]


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def lint_command(file: Path, output: str) -> int:
    """Check one file, or standard input for `-`. Returns the exit status: 0 without faults, else 1."""
    name = "<stdin>" if str(file) == "-" else str(file)
    findings: list[Finding] = []
    notes: list[str] = []
    pools = 0
    documents = 0
    try:
        for documents, document in enumerate(documents_of(read_text(file)), start=1):
            if not isinstance(document, Mapping):
                message = f"found {shown(document)}; write a Kubernetes object with apiVersion, kind, metadata and spec"
                findings.append(Finding(name, documents, "", message))
            elif document.get("kind") != KIND:
                notes.append(f"document {documents}: skipped, kind {shown(document.get('kind'))} is not {KIND}")
            else:
                pools += 1
                findings += [Finding(name, documents, fault.path, fault.message) for fault in lint_pool(document)]
                notes += [f"document {documents}: warning: {warning}" for warning in _warnings(document)]
    except Unreadable as error:
        findings.append(Finding(name, documents + 1, error.where, str(error)))
    else:
        if pools == 0 and not findings:
            message = f"found no {KIND}; write a document with apiVersion {API_VERSION} and kind {KIND}"
            findings.append(Finding(name, max(documents, 1), "", message))
    _report(name, findings, notes, pools, several=documents > 1, as_json=output == "json")
    return 1 if findings else 0


def lint_pool(document: Mapping[str, Any]) -> list[FieldError]:
    """Every fault of one LLMServingPool manifest, unknown fields included."""
    faults = []
    version = document.get("apiVersion")
    if version != API_VERSION:
        faults.append(FieldError("apiVersion", f"found {shown(version)}; write {API_VERSION}"))
    faults += _unknown(document)
    body = {key: document[key] for key in ("metadata", "spec") if document.get(key) is not None}
    try:
        LLMServingPool.parse({"metadata": {}, **body})
    except SpecError as error:
        faults += error.errors
    return faults


class Unreadable(Exception):
    """The file can't be read as YAML. `where` is a line, or empty."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def read_text(file: Path) -> str:
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with file.open("rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"can't be read ({error.strerror}); name a readable YAML file, or - for stdin") from None
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(f"found more than {MAX_FILE_BYTES} bytes; split the file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"found a byte that isn't UTF-8 at offset {error.start}; save the file as UTF-8") from None


def documents_of(text: str) -> Iterator[Any]:
    """The documents of a YAML stream without the empty ones; the items of a List count as documents."""
    count = 0
    try:
        for document in yaml.load_all(text, Loader=_Loader):
            items = document.get("items") if isinstance(document, Mapping) and document.get("kind") == "List" else None
            for item in items if isinstance(items, list) else [] if document is None else [document]:
                count += 1
                if count > MAX_DOCUMENTS:
                    raise Unreadable(f"found more than {MAX_DOCUMENTS} documents; split the file")
                yield item
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Unreadable(f"not YAML: {error.problem or error.context}; correct the syntax there", where) from None
    except yaml.YAMLError as error:
        raise Unreadable(f"not YAML: {error}; correct the syntax") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"not YAML that Kubernetes can take: {error}; correct it") from None


def _root_schema() -> dict[str, Any]:
    """What a manifest may contain. A status is the operator's and is ignored."""
    metadata: dict[str, Any] = {"properties": {name: {} for name in _METADATA_FIELDS}}
    return {"properties": {"apiVersion": {}, "kind": {}, "metadata": metadata, "spec": spec_schema(), "status": {}}}


def _unknown(document: Mapping[str, Any]) -> Iterator[FieldError]:
    for field in unknown_fields(_root_schema(), document):
        close = _closest(str(field.location[-1]), field.known, field.free)
        remedy = f"did you mean {close}?" if close else f"known here: {', '.join(sorted(field.known))}"
        yield FieldError(path_text(field.location), f"found an unknown field; {remedy}")


def _closest(name: str, known: tuple[str, ...], free: tuple[str, ...]) -> str | None:
    """The field that was probably meant: one with the same letters, else a similar one, rather one not yet set."""
    plain = name.replace("_", "").replace("-", "").lower()
    swapped = [field for field in known if sorted(field.lower()) == sorted(plain)]
    for fields in (swapped, free, known):
        by_lower = {field.lower(): field for field in fields}
        for close in difflib.get_close_matches(plain, by_lower, n=1, cutoff=0.6):
            return by_lower[close]
    return None


def _warnings(document: Mapping[str, Any]) -> list[FieldError]:
    try:
        return warnings(LLMServingPool.parse(document).spec)
    except SpecError:
        return []


def _report(name: str, findings: list[Finding], notes: list[str], pools: int, *, several: bool, as_json: bool) -> None:
    for note in notes:
        print(f"{name}: {note}", file=sys.stderr)
    if as_json:
        print(
            json.dumps(
                {"file": name, "pools": pools, "ok": not findings, "errors": [asdict(finding) for finding in findings]},
                indent=2,
            )
        )
    elif findings:
        for finding in findings:
            print(finding.line(several))
    else:
        print(f"{name}: OK, {pools} {KIND}{'' if pools == 1 else 's'}")

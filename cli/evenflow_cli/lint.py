"""`evenflow lint`: faults of LLMServingPool manifests, one line each: `FILE:path: what was found; remedy`."""

import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from evenflow_cli.lint_names import PoolSource, clashes
from evenflow_operator.api.errors import FieldError, SpecError
from evenflow_operator.api.messages import path_text, shown
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.api.rules import spec_schema, warnings
from evenflow_operator.api.structural import unknown_fields

MAX_FILE_BYTES = 3 * 1024 * 1024
MAX_DOCUMENTS = 1000
MAX_NODES = 200_000
NO_POOL = f"found no {KIND}; write a document with apiVersion {API_VERSION} and kind {KIND}"

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


def lint_command(targets: Sequence[Path], output: str) -> int:
    """Check files, the YAML files of folders, and standard input for `-`. Returns 0 without faults, else 1."""
    reports: list[Report] = []
    sources: list[PoolSource] = []
    seen: set[Path] = set()
    for target in targets:
        try:
            files = _files_of(target)
        except Unreadable as error:
            reports.append(Report(str(target), findings=[Finding(str(target), 1, "", str(error))]))
            continue
        checked: list[Report] = []
        for file in files:
            if (real := file if str(file) == "-" else file.resolve()) in seen:
                continue
            seen.add(real)
            report, pools = _lint_file(file, may_lack_pools=file != target)
            checked.append(report)
            sources += pools
        reports += checked
        if checked and not any(report.pools or report.findings for report in checked):
            reports.append(Report(str(target), findings=[Finding(str(target), 1, "", NO_POOL)]))
    by_name = {report.file: report for report in reports}
    for source, fault in clashes(sources):
        by_name[source.file].findings.append(Finding(source.file, source.document, fault.path, fault.message))
    _print(reports, as_json=output == "json")
    return 1 if any(report.findings for report in reports) else 0


@dataclass(slots=True)
class Report:
    """What was found in one file."""

    file: str
    documents: int = 0
    pools: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _files_of(target: Path) -> list[Path]:
    if str(target) == "-" or not target.is_dir():
        return [target]
    try:
        files = sorted(file for file in target.iterdir() if file.suffix in (".yaml", ".yml") and file.is_file())
    except OSError as error:
        raise Unreadable(f"can't be read ({error.strerror}); name a readable folder") from None
    if not files:
        raise Unreadable("found no *.yaml or *.yml in this folder; name the files, or a folder that has some")
    return files


def _lint_file(file: Path, *, may_lack_pools: bool) -> tuple[Report, list[PoolSource]]:
    report = Report("<stdin>" if str(file) == "-" else str(file))
    sources: list[PoolSource] = []
    findings, notes, documents = report.findings, report.notes, 0
    try:
        for documents, document in enumerate(documents_of(read_text(file)), start=1):
            if not isinstance(document, Mapping):
                message = f"found {shown(document)}; write a Kubernetes object with apiVersion, kind, metadata and spec"
                findings.append(Finding(report.file, documents, "", message))
            elif document.get("kind") != KIND:
                notes.append(f"document {documents}: skipped, kind {shown(document.get('kind'))} is not {KIND}")
            else:
                sources.append(PoolSource(report.file, documents, document))
                findings += [Finding(report.file, documents, one.path, one.message) for one in lint_pool(document)]
                notes += [f"document {documents}: warning: {warning}" for warning in _warnings(document)]
    except Unreadable as error:
        findings.append(Finding(report.file, documents + 1, error.where, str(error)))
    else:
        if not sources and not findings and not may_lack_pools:
            findings.append(Finding(report.file, max(documents, 1), "", NO_POOL))
    report.documents, report.pools = documents, len(sources)
    return report, sources


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
    for unknown in unknown_fields(_root_schema(), document):
        close = _closest(str(unknown.location[-1]), unknown.known, unknown.free)
        remedy = f"did you mean {close}?" if close else f"known here: {', '.join(sorted(unknown.known))}"
        yield FieldError(path_text(unknown.location), f"found an unknown field; {remedy}")


def _closest(name: str, known: tuple[str, ...], free: tuple[str, ...]) -> str | None:
    """The field that was probably meant: one with the same letters, else a similar one, rather one not yet set."""
    plain = name.replace("_", "").replace("-", "").lower()
    swapped = [name for name in known if sorted(name.lower()) == sorted(plain)]
    for names in (swapped, free, known):
        by_lower = {name.lower(): name for name in names}
        for close in difflib.get_close_matches(plain, by_lower, n=1, cutoff=0.6):
            return by_lower[close]
    return None


def _warnings(document: Mapping[str, Any]) -> list[FieldError]:
    try:
        return warnings(LLMServingPool.parse(document).spec)
    except SpecError:
        return []


def _print(reports: Sequence[Report], *, as_json: bool) -> None:
    for report in reports:
        for note in report.notes:
            print(f"{report.file}: {note}", file=sys.stderr)
        if not as_json:
            for finding in report.findings:
                print(finding.line(several=report.documents > 1))
            if not report.findings:
                print(f"{report.file}: OK, {report.pools} {KIND}{'' if report.pools == 1 else 's'}")
    if as_json:
        files = [
            {
                "file": report.file,
                "pools": report.pools,
                "ok": not report.findings,
                "errors": [asdict(finding) for finding in report.findings],
            }
            for report in reports
        ]
        print(json.dumps({"ok": not any(report.findings for report in reports), "files": files}, indent=2))

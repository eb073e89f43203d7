"""Label and field selectors, as query parameters carry them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenflow_devcluster.embedded.errors import bad_request

Predicate = Callable[[Mapping[str, Any]], bool]

_SET_TERM = re.compile(r"^(?P<key>[^\s!=<>()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL_TERM = re.compile(r"^(?P<key>[^\s!=<>()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=<>()]*)$")
_ORDER_TERM = re.compile(r"^(?P<key>[^\s!=<>()]+)\s*(?P<op>[<>])\s*(?P<value>-?\d+)$")
_EXISTS_TERM = re.compile(r"^(?P<negated>!?)\s*(?P<key>[^\s!=<>()]+)$")
_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        try:
            number = int(value or "")
        except ValueError:
            return False
        return number > int(self.values[0]) if self.operator == ">" else number < int(self.values[0])


def split_terms(text: str) -> list[str]:
    """The comma-separated terms of a selector; commas inside parentheses don't separate."""
    terms: list[str] = []
    depth, start = 0, 0
    for index, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            terms.append(text[start:index].strip())
            start = index + 1
    terms.append(text[start:].strip())
    return terms if text.strip() else []


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """Raises 400 naming the term that can't be parsed."""
    return tuple(_requirement(term, text) for term in split_terms(text))


def _requirement(term: str, text: str) -> Requirement:
    if match := _SET_TERM.match(term):
        values = tuple(value.strip() for value in match["values"].split(","))
        found = Requirement(match["key"], match["op"], values)
    elif match := _EQUAL_TERM.match(term):
        found = Requirement(match["key"], "notin" if match["op"] == "!=" else "in", (match["value"],))
    elif match := _ORDER_TERM.match(term):
        found = Requirement(match["key"], match["op"], (match["value"],))
    elif match := _EXISTS_TERM.match(term):
        found = Requirement(match["key"], "absent" if match["negated"] else "exists")
    else:
        raise bad_request(f"unable to parse requirement: {term!r} in label selector {text!r}")
    if not _KEY.match(found.key):
        raise bad_request(f"unable to parse requirement: invalid label key {found.key!r} in label selector {text!r}")
    return found


def requirements_of(selector: Mapping[str, Any] | None) -> tuple[Requirement, ...] | None:
    """A metav1.LabelSelector (matchLabels, matchExpressions); None, which matches nothing, if it is absent."""
    if selector is None:
        return None
    found = [Requirement(key, "in", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    words = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    found += [
        Requirement(term["key"], words[term["operator"]], tuple(term.get("values") or ()))
        for term in selector.get("matchExpressions") or ()
    ]
    return tuple(found)


def labels_match(requirements: Sequence[Requirement], labels: Mapping[str, str] | None) -> bool:
    known = labels or {}
    return all(requirement.matches(known) for requirement in requirements)


def parse_field_selector(text: str, allowed: Mapping[str, tuple[str, ...]], qualified: str) -> Predicate | None:
    """`allowed` maps a field's label to its path in the object. Raises 400 for any other field."""
    terms: list[tuple[tuple[str, ...], str, bool]] = []
    for term in split_terms(text):
        match = re.match(r"^([^=!]+?)(==|=|!=)(.*)$", term)
        if match is None:
            raise bad_request(f"invalid field selector: {text!r}; can't understand {term!r}")
        label, operator, value = match[1].strip(), match[2], match[3].strip()
        path = allowed.get(label)
        if path is None:
            raise bad_request(
                f'Unable to find "{qualified}" that match label selector "", field selector "{text}": '
                f"field label not supported: {label}"
            )
        terms.append((path, re.sub(r"\\([\\,=])", r"\1", value), operator != "!="))
    if not terms:
        return None
    return lambda obj: all((_field(obj, path) == value) is wanted for path, value, wanted in terms)


def _field(obj: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value: Any = obj
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def both(requirements: Sequence[Requirement], fields: Predicate | None) -> Predicate | None:
    """One predicate on objects for both selectors; None when there is nothing to select by."""
    if not requirements:
        return fields

    def selected(obj: Mapping[str, Any]) -> bool:
        if not labels_match(requirements, obj["metadata"].get("labels")):
            return False
        return fields is None or fields(obj)

    return selected


def selector_text(selector: Mapping[str, Any]) -> str:
    """A metav1.LabelSelector as a query parameter carries it."""
    words = {"in": "{} in ({})", "notin": "{} notin ({})", "exists": "{}", "absent": "!{}"}
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    expressions = requirements_of({"matchExpressions": selector.get("matchExpressions")}) or ()
    terms += [(one.key, words[one.operator].format(one.key, ",".join(sorted(one.values)))) for one in expressions]
    return ",".join(text for _, text in sorted(terms))

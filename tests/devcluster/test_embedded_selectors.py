"""Label and field selectors."""

import pytest

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.syntax.selectors import (
    both,
    labels_match,
    parse_field_selector,
    parse_label_selector,
    requirements_of,
)

LABELS = {"app": "web", "tier": "1", "x.io/role": "a"}
FIELDS = {"metadata.name": ("metadata", "name"), "status.phase": ("status", "phase")}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier!=2", True),
        ("app!=web", False),
        ("other!=web", True),
        ("app in (api, web)", True),
        ("app notin (api,web)", False),
        ("missing notin (a)", True),
        ("x.io/role", True),
        ("!x.io/role", False),
        ("!missing,app", True),
        ("tier>0", True),
        ("tier<1", False),
        ("app>0", False),
        ("app in (web),tier in (1,2)", True),
        ("empty=", False),
    ],
)
def test_label_selectors(selector: str, expected: bool) -> None:
    assert labels_match(parse_label_selector(selector), LABELS) is expected


@pytest.mark.parametrize("selector", ["app in", "a b", "app in web", "=x", "a=b=c", "in (a)", "-a=b", ","])
def test_bad_label_selectors_are_400(selector: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_label_selector(selector)
    assert caught.value.code == 400


def test_label_selector_objects() -> None:
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["1"]}]}
    found = requirements_of(selector)
    assert found is not None
    assert labels_match(found, LABELS)
    assert not labels_match(found, {"app": "web"})
    assert requirements_of(None) is None
    assert requirements_of({}) == ()


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=a", True),
        ("metadata.name=a,status.phase!=Failed", True),
        ("status.phase=", True),
        ("status.phase=Running", False),
        ("metadata.name==b", False),
    ],
)
def test_field_selectors(selector: str, expected: bool) -> None:
    predicate = parse_field_selector(selector, FIELDS, "pods")
    assert predicate is not None
    assert predicate({"metadata": {"name": "a"}}) is expected


def test_an_unknown_field_is_400_naming_it() -> None:
    with pytest.raises(StatusError, match=r"field label not supported: spec\.image") as caught:
        parse_field_selector("spec.image=x", FIELDS, "pods")
    assert caught.value.code == 400


def test_both_selectors_must_match() -> None:
    predicate = both(parse_label_selector("app=web"), parse_field_selector("metadata.name=a", FIELDS, "pods"))
    assert predicate is not None
    assert predicate({"metadata": {"name": "a", "labels": LABELS}})
    assert not predicate({"metadata": {"name": "b", "labels": LABELS}})
    assert not predicate({"metadata": {"name": "a"}})
    assert both((), None) is None

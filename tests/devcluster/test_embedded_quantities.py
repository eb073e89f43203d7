"""Quantities against examples of Kubernetes' own documentation and tests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.embedded.syntax.quantities import canonical, quantity


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5", "1500m"),
        (0.5, "500m"),
        (1, "1"),
        ("1000m", "1"),
        ("2000", "2k"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("1024", "1024"),
        ("0", "0"),
        ("0Gi", "0"),
        ("100Mi", "100Mi"),
        ("0.1n", "1n"),
        ("-5", "-5"),
        ("1e3", "1e3"),
        ("430000", "430k"),
        ("0.5Ki", "512"),
        ("12E", "12E"),
    ],
)
def test_canonical_form(text: object, expected: str) -> None:
    assert canonical(text) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1.0),
        (2, 2.0),
        ("250m", 0.25),
        ("1k", 1e3),
        ("1Ki", 1024.0),
        ("1.5Gi", 1.5 * 2**30),
        ("3e2", 300.0),
        ("2E", 2e18),
    ],
)
def test_values(text: object, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "two", "1Zi", "1 Gi", "Gi", "1K", True, None, "--1"])
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        canonical(text)


@given(st.integers(0, 10**7), st.sampled_from(["m", "", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_canonical_form_keeps_the_value_and_is_stable(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert quantity(canonical(text)) == pytest.approx(quantity(text))
    assert canonical(canonical(text)) == canonical(text)

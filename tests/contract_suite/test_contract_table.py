"""The suite's own book-keeping: the document lists exactly the behaviours that the tests prove."""

from suite_table import DOCUMENT, areas, document


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: python tests/contract_suite/suite_table.py --write"


def test_every_area_has_behaviours() -> None:
    assert len(areas()) > 10
    assert all(areas().values())

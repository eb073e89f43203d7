"""The one error that a document of the contract can raise."""

MAX_FIELD = 120


class ContractError(ValueError):
    """A document between operator and worker that must be refused whole.

    `field` is the path inside the document (`admission.perIteration`), `found` what stood there, `remedy` what would be
    accepted. Nothing of a refused document may be applied.
    """

    def __init__(self, field: str, found: str, remedy: str) -> None:
        self.field = _bounded(field)
        self.found = found
        self.remedy = remedy
        super().__init__(f"{self.field}: {found}; {remedy}")


def _bounded(field: str) -> str:
    """One short line: keys of a foreign document are part of paths, and errors go into logs."""
    text = field if field.isprintable() else field.encode("unicode_escape").decode()
    return text if len(text) <= MAX_FIELD else text[: MAX_FIELD - 3] + "..."

"""The one error that a document of the contract can raise."""


class ContractError(ValueError):
    """A document between operator and worker that must be refused whole.

    `field` is the path inside the document (`admission.perIteration`), `found` what stood there, `remedy` what would be
    accepted. Nothing of a refused document may be applied.
    """

    def __init__(self, field: str, found: str, remedy: str) -> None:
        self.field = field
        self.found = found
        self.remedy = remedy
        super().__init__(f"{field}: {found}; {remedy}")

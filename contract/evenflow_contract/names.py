"""Names that pools and classes may have, bounded so that every derived name fits (docs/design.md §6.1)."""

import re

from evenflow_contract.errors import ContractError

MAX_POOL_NAME = 40
MAX_CLASS_NAME = 22
MAX_CLASSES = 32
DEFAULT_CLASS = "default"
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

_NAME = re.compile(NAME_PATTERN)


def check_class_name(name: object, field: str) -> str:
    if not isinstance(name, str) or len(name) > MAX_CLASS_NAME or not _NAME.fullmatch(name):
        raise ContractError(
            field, repr(name)[:60], f"must match {NAME_PATTERN} and have at most {MAX_CLASS_NAME} characters"
        )
    return name

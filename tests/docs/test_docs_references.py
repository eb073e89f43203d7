"""References resolve: from code and docs to numbered sections of docs/, and links between Markdown files."""

import re
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_module import ROOT

SECTION = re.compile(r"docs/([\w./-]+\.md),?((?: ?(?:,|and|–)? ?§ ?\d+(?:\.\d+)*)*)")
NUMBER = re.compile(r"§ ?(\d+(?:\.\d+)*)")
BARE = re.compile(r"\b(?:design|theory|kubernetes|engine|evaluation|field)(?:\.md)? ?§|\btheory [A-F]\b|\bpaper 00\d")
LABELLED_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
FENCED = re.compile(r"```.*?```", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def texts(*endings: str) -> dict[Path, str]:
    """Every file of the repository with such an ending: committed ones, and new ones that aren't ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
        files = [ROOT / name for name in listed]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive without git
        hidden = (".venv", ".git", "demo-out", "node_modules")
        files = [path for path in ROOT.rglob("*") if not set(path.relative_to(ROOT).parts) & set(hidden)]
    return {path: path.read_text(encoding="utf-8") for path in files if path.suffix in endings and path.is_file()}


def sections(document: Path) -> set[str]:
    headings = HEADING.findall(FENCED.sub("", document.read_text(encoding="utf-8")))
    return {match[1] for heading in headings if (match := re.match(r"(\d+(?:\.\d+)*)\.? ", heading))}


def anchors(document: Path) -> set[str]:
    return {_anchor(heading) for heading in HEADING.findall(FENCED.sub("", document.read_text(encoding="utf-8")))}


def _anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).lower()
    kept = (char for char in plain if char in "-_ " or unicodedata.category(char)[0] in "LN")
    return "".join(kept).replace(" ", "-")


def broken_references(path: Path, text: str) -> Iterator[str]:
    for match in SECTION.finditer(text):
        document = ROOT / "docs" / match[1]
        if not document.is_file():
            yield f"{match[0].strip()}: no such document"
            continue
        for number in NUMBER.findall(match[2]):
            if number not in sections(document):
                yield f"docs/{match[1]} §{number}: no such section"
    # A link to a Markdown file may name a section in its label.
    for label, target in LABELLED_LINK.findall(text) if path.suffix == ".md" else ():
        document = (path.parent / target.partition("#")[0]).resolve()
        if document.suffix == ".md" and document.is_file():
            for number in NUMBER.findall(label):
                if number not in sections(document):
                    yield f"[{label}]({target}): no such section"


def broken_links(path: Path, text: str) -> Iterator[str]:
    for _, target in LABELLED_LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = path if not name else (path.parent / name)
        if not file.resolve().is_relative_to(ROOT) or not file.exists():
            yield f"{target}: leads nowhere"
        elif fragment and file.suffix == ".md" and fragment not in anchors(file):
            yield f"{target}: no such heading"


def found(check: object, files: dict[Path, str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {what}" for path, text in files.items() for what in check(path, text)]  # type: ignore[operator]


def test_references_to_sections_resolve() -> None:
    files = texts(".py", ".md", ".yaml", ".toml", ".sh")
    files.pop(Path(__file__).resolve(), None)
    assert sum(len(SECTION.findall(text)) for text in files.values()) > 60
    assert found(broken_references, files) == []


def test_no_reference_names_a_document_that_the_product_does_not_ship() -> None:
    files = texts(".py", ".yaml", ".toml", ".sh")
    files.pop(Path(__file__).resolve(), None)
    bare = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, text in files.items()
        for match in BARE.finditer(re.sub(r"docs/[\w./-]+\.md|\[[^\]]*\]\([^)]*\)", "", text))
    }
    assert bare == set()


def test_links_between_markdown_files_resolve() -> None:
    files = texts(".md")
    assert len(files) > 10
    assert found(broken_links, files) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("see docs/design.md §5.3", 0),
        ("see docs/design.md §6.1, §6.2", 0),
        ("see docs/design.md §5.99", 1),
        ("see docs/design.md §1, §77", 1),
        ("see docs/nowhere.md", 1),
        ("see [design.md §6.2](design.md)", 0),
        ("see [design.md §99](design.md)", 1),
    ],
)
def test_a_reference_that_leads_nowhere_is_found(text: str, wrong: int) -> None:
    assert len(list(broken_references(ROOT / "docs" / "words.md", text))) == wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](design.md)", 0),
        ("[a](design.md#5-the-loops)", 0),
        ("[a](design.md#the-moon)", 1),
        ("[a](../no/such.png)", 1),
        ("[a](../../elsewhere.md)", 1),
        ("`[a](in-code.md)` [b](https://example.org/x)", 0),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text: str, wrong: int) -> None:
    assert len(list(broken_links(ROOT / "docs" / "words.md", text))) == wrong

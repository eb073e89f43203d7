"""The demo: a production trace against a pool on one computer, before and after Evenflow."""

from pathlib import Path


def examples_folder() -> Path:
    """Where the pools and traces of the demo lie: in the repository that this package is installed from, editable."""
    return Path(__file__).resolve().parents[3] / "examples"

"""Fixtures of the end-to-end tests."""

from e2e_stack import cluster, stack

__all__ = ["cluster", "stack"]

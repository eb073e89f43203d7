"""Structural schemas: what a value may look like, and what is done to it before it is stored."""

"""Discrete-event simulation of a pool: vLLM-like engines with block-wise KV memory, behind a router."""

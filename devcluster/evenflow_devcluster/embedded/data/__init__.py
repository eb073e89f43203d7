"""Schemas of the built-in kinds, cut from the OpenAPI documents of Kubernetes 1.37.2 (Apache-2.0)."""

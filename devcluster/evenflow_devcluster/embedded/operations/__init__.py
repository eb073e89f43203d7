"""Everything the API does, without HTTP: writing, deleting, subresources, and what follows from a write."""

"""Structure of the built-in kinds: types, defaults, list and merge keys of Kubernetes 1.37.2 (Apache-2.0), no prose."""

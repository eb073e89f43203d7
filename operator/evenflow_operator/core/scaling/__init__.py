"""The built-in autoscaler: from what the engines report to the number of replicas (docs/design.md §5.4)."""

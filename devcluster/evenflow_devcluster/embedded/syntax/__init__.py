"""The small notations inside objects and queries: names, quantities, selectors."""

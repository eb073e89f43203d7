"""What the server knows about each kind: its resource, its strategy, its columns; and which are served now."""

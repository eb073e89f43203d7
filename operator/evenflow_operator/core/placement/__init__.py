"""Which traffic classes each slot serves, from lengths and severity."""

"""How a change becomes a new object: the four kinds of patch, and who owns which field afterwards."""

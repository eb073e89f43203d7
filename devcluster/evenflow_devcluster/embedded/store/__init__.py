"""The objects in memory, their history, and the watches on them."""

"""Which pod fills which slot, what to create, what to drain and delete."""

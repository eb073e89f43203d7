"""The finalizers with which a deletion waits for, or lets go of, what belongs to the object."""

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"

"""Replays request traces against Services, in engine time."""

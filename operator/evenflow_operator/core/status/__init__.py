"""What the pool says of itself: status, slots, conditions, and when it is written."""

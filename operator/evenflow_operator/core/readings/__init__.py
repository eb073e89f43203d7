"""What the engines report, as facts of this moment and rates over the last minute."""

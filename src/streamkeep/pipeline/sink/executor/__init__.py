"""What the tasks of a write run."""

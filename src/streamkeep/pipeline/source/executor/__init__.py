"""What the tasks of a read run."""

"""How work is distributed: cutting it into tasks, running these, and trying a commit again."""

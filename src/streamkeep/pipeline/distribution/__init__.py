"""How work is distributed: cutting it into tasks, and running these."""

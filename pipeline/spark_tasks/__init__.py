"""How jobs and reads are distributed: packing work, running it in tasks, fast starts of tasks."""

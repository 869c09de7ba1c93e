"""Random workloads under random faults, and one oracle: `python -m tests.crash.workload --help`."""

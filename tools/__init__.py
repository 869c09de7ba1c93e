"""The command line: one module per command in `commands`, what they share in `base`."""

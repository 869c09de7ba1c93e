"""What commands share: options, errors and exit statuses, output as text and JSON, progress.

May import: everything below `tools`, no command. For the rest: `command`, `output` and the
printers.
"""

"""One module per command or group of commands; each only parses options, calls the library, prints.

May import: `tools.base`, and the libraries. `tools.cli` lists them.
"""

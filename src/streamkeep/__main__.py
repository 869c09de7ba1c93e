"""`python -m streamkeep` and `streamkeep` are the command line."""

import sys


def main() -> None:
    """Run the command line.

    Loading it takes a moment, in which an interrupt ends the program as it does later.
    """
    try:
        from streamkeep.tools.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        print("\nAborted!", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

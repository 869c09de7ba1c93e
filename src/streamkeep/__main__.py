"""`python -m streamkeep` is the command line."""

from streamkeep.tools.cli import main

if __name__ == "__main__":
    main()

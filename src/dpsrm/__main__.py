"""`python -m dpsrm`: the command line."""

from dpsrm.cli.app import main

if __name__ == "__main__":
    main()

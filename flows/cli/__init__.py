"""The `lyceum` command: what each subcommand does, and what it shows."""

import sys


def lyceum() -> int:
    """The console script. What it imports takes long enough for somebody to press Ctrl-C."""
    try:
        from flows.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("lyceum: stopped before it began\n")
        return 130
    return main()

"""`make stop`: stops all processes that `make demo KEEP=1` and `make demo-mysql KEEP=1` left running."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.local import demo, demo_mysql
from deploy.local.process import ProcessError, stop_recorded


def main(*folders: Path) -> int:
    """Stop every server with a record below `folders` (default: those of the demos). Returns the exit status."""
    try:
        stopped = [name for folder in folders or (demo.FOLDER, demo_mysql.FOLDER) for name in stop_recorded(folder)]
    except ProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing is running")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))

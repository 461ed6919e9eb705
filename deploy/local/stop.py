"""`make stop`: ends what `make demo KEEP=1` left running, with all it started."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.local.demo import FOLDER
from deploy.local.process import ProcessError, stop_recorded


def main(folder: Path = FOLDER) -> int:
    """Stop every server that left a record below `folder`; the exit status."""
    try:
        stopped = stop_recorded(folder)
    except ProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing is running")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))

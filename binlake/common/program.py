"""Runs a module as a program of Binlake: `python -m binlake.common.program MODULE ARGUMENTS`."""

from __future__ import annotations

import runpy
import sys

from binlake.common.process import share_arenas, use_system_memory
from binlake.common.startup import collect_rarely, import_lightly


def main() -> None:
    """Do what `python -m MODULE ARGUMENTS` does, in a process without unused imports."""
    collect_rarely()
    import_lightly()
    use_system_memory()
    share_arenas()
    # Imported after `import_lightly`: it loads structlog.
    from binlake.common.logs import write_events_to

    write_events_to(sys.stdout)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

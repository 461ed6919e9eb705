"""The `binlake` command: finds the commands that the rooms register and turns errors into one clear line."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn, Protocol

from binlake.base.lightimport import import_lightly
from binlake.errors import BinlakeError

GROUP = "binlake.commands"


class Command(Protocol):
    """One command of the CLI; shells register theirs under the entry point group `binlake.commands`."""

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit status. Raises BinlakeError for everything a person must read."""


def main() -> NoReturn:
    """The process `binlake`: run and leave with the command's status."""
    import_lightly()
    status = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Thread pools of native libraries (Arrow, delta-rs) now and then abort while the interpreter is taken down: all
    # that must be ended has been ended, so the process leaves without that.
    atexit._run_exitfuncs()
    os._exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run `binlake ARGUMENTS`; the exit status.

    0 = done, 1 = an error was printed, 2 = unusable arguments, 3 = not found, 130 = interrupted.
    """
    # Behind `import_lightly`: it loads structlog.
    from binlake.base.logs import write_events_to

    command, args = prepare(arguments)
    # Events go to stderr: stdout is what the command prints, `--output json` among it.
    write_events_to(sys.stderr)
    try:
        return command.run(args)
    except BinlakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def prepare(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command that `ARGUMENTS` name, and its own arguments. Raises SystemExit(2) for unusable ones."""
    arguments = list(arguments)
    points = {point.name: point for point in entry_points(group=GROUP)}
    parser = _parser(points)
    name = parser.parse_args(arguments[:1]).command
    command: Command = points[name].load()()
    own = argparse.ArgumentParser(prog=f"binlake {name}", description=command.help)
    command.add_arguments(own)
    return command, own.parse_args(arguments[1:])


def _parser(points: dict[str, EntryPoint]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="binlake",
        description="TiDB and MySQL changes into another database and a lakehouse.",
        epilog="Run `binlake COMMAND --help` for the options of a command.",
    )
    parser.add_argument("command", choices=sorted(points), metavar="COMMAND", help=", ".join(sorted(points)))
    return parser


if __name__ == "__main__":
    main()

"""The `binlake` command: finds the commands that the rooms register and turns errors into one clear line."""

from __future__ import annotations

import argparse
import atexit
import os
import select
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn, Protocol, TextIO

from binlake.base.garbage import collect_rarely
from binlake.base.lightimport import import_lightly
from binlake.errors import BinlakeError

GROUP = "binlake.commands"


class Command(Protocol):
    """One command of the CLI; shells register theirs under the entry point group `binlake.commands`."""

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; returns the exit status. Raises BinlakeError for everything that the user must read."""


def main() -> NoReturn:
    """The process `binlake`: run the command and exit with its status."""
    collect_rarely()
    import_lightly()
    status = run(sys.argv[1:])
    sys.stderr.flush()
    # Thread pools of native libraries (Arrow, delta-rs) sometimes abort while the interpreter shuts down. Everything
    # that must be closed is closed by now, so the process exits without this shutdown.
    atexit._run_exitfuncs()
    os._exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run `binlake ARGUMENTS`; returns the exit status.

    0 = done, 1 = an error was printed, 2 = invalid arguments, 3 = not found, 130 = interrupted, 141 = the reader of
    the output has closed the pipe.
    """
    try:
        return _run(arguments)
    except BinlakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):
            # Discard the rest of the output: a flush would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        storage_error = _translate_storage_error(error)
        if storage_error is None:
            raise
        print(f"error: {storage_error}", file=sys.stderr)
        return 1


def _run(arguments: Sequence[str]) -> int:
    # Imported after `import_lightly`: it loads structlog.
    from binlake.base.logs import write_events_to

    command, args = prepare(arguments)
    # Events go to stderr: stdout is for the command's output, such as that of `--output json`.
    write_events_to(sys.stderr)
    status = command.run(args)
    sys.stdout.flush()
    return status


def _is_unread(stream: TextIO) -> bool:
    """True for a pipe whose reader has closed it, as in `binlake ... | head`."""
    pipe = select.poll()
    pipe.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))


def _translate_storage_error(error: Exception) -> BinlakeError | None:
    """The error of a disk or of the lake's storage, for people; None for any other error: a fault of the program."""
    # Imported late: most commands need no Delta.
    from binlake.lake.damage import translate_storage_error

    return translate_storage_error(error)


def prepare(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command that `arguments` name, and its parsed arguments. Raises SystemExit(2) for invalid ones."""
    arguments = list(arguments)
    points = {point.name: point for point in entry_points(group=GROUP)}
    parser = _make_parser(points)
    name = parser.parse_args(arguments[:1]).command
    command: Command = points[name].load()()
    own = argparse.ArgumentParser(prog=f"binlake {name}", description=command.help)
    command.add_arguments(own)
    return command, own.parse_args(arguments[1:])


def _make_parser(points: dict[str, EntryPoint]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="binlake",
        description="Replicates changes of TiDB and MySQL to another database and a lakehouse.",
        epilog="Run `binlake COMMAND --help` for the options of a command.",
    )
    parser.add_argument("command", choices=sorted(points), metavar="COMMAND", help=", ".join(sorted(points)))
    return parser


if __name__ == "__main__":
    main()

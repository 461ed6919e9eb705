"""The `binlake` command: finds the commands that the rooms register and turns errors into one clear line.

`binlake completion SHELL` prints a script with which a shell completes commands, actions, options and files. The script
is static: pressing Tab starts no Python, and asks no server. It knows the commands whose packages are installed; after
an update it is printed again.
"""

from __future__ import annotations

import argparse
import atexit
import os
import select
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn, Protocol, TextIO

from binlake.common.commandline import Exit, describe_commands, explain_actions, explain_unknown_command, find_action
from binlake.common.installation import explain_missing, list_versions
from binlake.common.localfiles import describe_os_error
from binlake.common.process import use_system_memory
from binlake.common.startup import collect_rarely, import_lightly
from binlake.common.terminal import escape_invisible
from binlake.errors import BinlakeError, ConfigError

GROUP = "binlake.commands"


class _Version(argparse.Action):
    """Reads the versions only when they are asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object, **_kwargs: object) -> NoReturn:
        print(*list_versions(), f"python {sys.version.split()[0]}", sep="\n")
        parser.exit()


class Command(Protocol):
    """One command of the CLI; shells register theirs under the entry point group `binlake.commands`."""

    help: str
    examples: Sequence[str]
    """Command lines for `--help`: one or two of the command, or of each of its actions."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; returns the exit status. Raises BinlakeError for everything that the user must read."""


def main() -> NoReturn:
    """The process `binlake`: run the command and exit with its status."""
    collect_rarely()
    import_lightly()
    use_system_memory()
    status = run(sys.argv[1:])
    sys.stderr.flush()
    # Thread pools of native libraries (Arrow, delta-rs) sometimes abort while the interpreter shuts down. Everything
    # that must be closed is closed by now, so the process exits without this shutdown.
    atexit._run_exitfuncs()
    os._exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run `binlake ARGUMENTS`; returns the exit status.

    Its meanings are those of `Exit`.
    """
    try:
        return _run(arguments)
    except BinlakeError as error:
        _print_error(error)
        return Exit.ERROR
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except Exception as error:
        if missing := explain_missing(error):
            _print_error(missing)
            return Exit.ERROR
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):
            # Discard the rest of the output: a flush would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.PIPE_CLOSED
        storage_error = _translate_storage_error(error)
        if storage_error is None:
            raise
        _print_error(storage_error)
        return Exit.ERROR


def _run(arguments: Sequence[str]) -> int:
    # Imported after `import_lightly`: it loads structlog.
    from binlake.common.logs import write_events_to

    command, args = prepare(arguments)
    # Events go to stderr: stdout is for the command's output, such as that of `--output json`.
    write_events_to(sys.stderr)
    status = command.run(args)
    sys.stdout.flush()
    return status


def _print_error(error: BinlakeError) -> None:
    """One line; what a server or a file put into the text moves no cursor and changes no colour."""
    from binlake.common.logs import are_logs_json

    if are_logs_json():
        import structlog

        structlog.get_logger().error("command_failed", error=error.message, hint=error.hint, where=error.where)
        return
    print(f"error: {escape_invisible(str(error))}", file=sys.stderr)


def _is_unread(stream: TextIO) -> bool:
    """True for a pipe whose reader has closed it, as in `binlake ... | head`."""
    pipe = select.poll()
    pipe.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))


def _translate_storage_error(error: Exception) -> BinlakeError | None:
    """The error of a disk or of the lake's storage, for people; None for any other error: a fault of the program."""
    # Imported late: most commands need no Delta, and a host of pumps has none.
    try:
        from binlake.lake.damage import translate_storage_error
    except ModuleNotFoundError:
        return describe_os_error(error) if isinstance(error, OSError) else None
    return translate_storage_error(error)


def prepare(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command that `arguments` name, and its parsed arguments. Raises SystemExit(2) for invalid ones."""
    arguments = list(arguments)
    points = {point.name: point for point in entry_points(group=GROUP)}
    parser = _build_parser(points)
    name = parser.parse_args(arguments[:1]).command
    if name not in points:
        parser.error(explain_unknown_command(name, points))
    command: Command = load(points[name])
    own = build_parser(name, command)
    args, unknown = own.parse_known_args(arguments[1:])
    if unknown:
        find_action(own, arguments[1:]).error(f"unrecognized arguments: {' '.join(unknown)}")
    return command, args


def build_parser(name: str, command: Command) -> argparse.ArgumentParser:
    """The parser of one command; each action shows only its own options and examples."""
    parser = argparse.ArgumentParser(prog=f"binlake {name}", description=command.help)
    command.add_arguments(parser)
    explain_actions(parser, command.examples)
    return parser


def load(point: EntryPoint) -> Command:
    """The command of an entry point. Raises ConfigError that names the extra if a package of it is missing."""
    try:
        command: Command = point.load()()
    except ModuleNotFoundError as error:
        raise explain_missing(error, point.name, tuple(point.extras)) or error from error
    return command


def _build_parser(points: dict[str, EntryPoint]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="binlake",
        description="Replicates changes of TiDB and MySQL to another database and a lakehouse.",
        epilog=f"{describe_commands(points)}\n\nRun `binlake COMMAND --help` for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of Binlake and its packages")
    parser.add_argument("command", metavar="COMMAND", help="one of the commands below")
    return parser


if __name__ == "__main__":
    main()


_SHELLS = ("bash", "zsh", "fish")
_FILES, _FOLDERS = frozenset({"FILE", "TS|FOLDER"}), frozenset({"DIR", "FOLDER"})
"""Values of options that are files or folders, by their metavar."""


class CompletionCommand:
    """Print a completion script."""

    help = "print the script with which bash, zsh or fish completes commands, actions and options"
    examples = ("binlake completion bash", "binlake completion zsh", "binlake completion fish")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The shell."""
        parser.add_argument(
            "shell", choices=_SHELLS, help="the shell; docs/operate/install.md says where the script goes"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print it."""
        # Imported here: no other command needs it.
        import shtab

        parser = build_whole_parser()
        for action in _list_values(parser):
            if action.metavar in _FILES | _FOLDERS:
                action.complete = shtab.FILE if action.metavar in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
        print(shtab.complete(parser, args.shell))
        return Exit.DONE


def build_whole_parser() -> argparse.ArgumentParser:
    """One parser of all commands; of a command whose packages are missing only the name."""
    parser = argparse.ArgumentParser(prog="binlake")
    parser.add_argument("--version", action="store_true", help="show the versions of Binlake and its packages")
    commands = parser.add_subparsers(dest="command")
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        command = _find_command(point)
        own = commands.add_parser(point.name, help=command.help if command else f"needs {', '.join(point.extras)}")
        if command is not None:
            command.add_arguments(own)
    return parser


def _find_command(point: EntryPoint) -> Command | None:
    try:
        return load(point)
    except ConfigError:  # an extra is not installed
        return None


def _list_values(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    # argparse has no public way to walk the actions of a parser.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _list_values(below)
        else:
            yield action

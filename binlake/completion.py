"""`binlake completion SHELL`: prints a script with which a shell completes commands, actions, options and files.

The script is static: pressing Tab starts no Python, and asks no server. It knows the commands whose packages are
installed; after an update it is printed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from binlake.base.commandline import Exit
from binlake.cli import GROUP, Command, load
from binlake.errors import ConfigError

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

        parser = build_parser()
        for action in _list_values(parser):
            if action.metavar in _FILES | _FOLDERS:
                action.complete = shtab.FILE if action.metavar in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
        print(shtab.complete(parser, args.shell))
        return Exit.DONE


def build_parser() -> argparse.ArgumentParser:
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

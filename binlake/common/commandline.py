"""The command line that the commands of all rooms share: options, exit statuses, and what `--help` shows.

`binlake --help` shows the commands by purpose: a command's own package is imported only when it runs.
docs/reference/exit-codes.md explains the exit statuses.
"""

from __future__ import annotations

import argparse
import difflib
import math
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum

from binlake import tso


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare `--output`, text or json."""
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="format of the result; JSON has timestamps as text",
    )


def add_replications(parser: argparse.ArgumentParser) -> None:
    """Declare REPLICATION, any number of them, also as `--replication` as in commands of one replication."""
    about = "its name or its TOML file (default: all)"
    parser.add_argument("replication", nargs="*", metavar="REPLICATION", help=about)
    parser.add_argument("--replication", dest="named", action="append", metavar="REPLICATION", help="the same")


def list_replications(args: argparse.Namespace) -> list[str]:
    """The replications that the arguments of `add_replications` name; empty: all."""
    return [*args.replication, *(args.named or ())]


def read_moment(text: str) -> int:
    """The argparse type of an option whose value is a commit_ts or a time."""
    try:
        return tso.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_seconds(text: str) -> float:
    """The argparse type of an option whose value is a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def parse_count(text: str) -> int:
    """The argparse type of an option whose value is a number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


class Exit(IntEnum):
    """What an exit status says; the same number has the same meaning for every command."""

    DONE = 0
    ERROR = 1
    INVALID_ARGUMENTS = 2
    NOT_FOUND = 3
    ATTENTION = 4
    STOPPED = 5
    UNKNOWN = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141


_HEAD = "examples:\n"


class _Help(argparse.HelpFormatter):
    """Leaves the lines of examples as they are: a folded command line cannot be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_HEAD) else super()._fill_text(text, width, indent)


def explain_actions(parser: argparse.ArgumentParser, examples: Sequence[str]) -> None:
    """Add to `parser` and each of its actions the examples of it that no action below it has."""
    # argparse has no public way to walk the actions of a parser.
    below = list(_list_actions(parser))
    for name, (action, text) in {name: one for found in below for name, one in found.items()}.items():
        action.description = action.description or text
        explain_actions(action, [example for example in examples if _begins_with(example, f"{parser.prog} {name}")])
    names = [f"{parser.prog} {name}" for found in below for name in found]
    own = [example for example in examples if not any(_begins_with(example, name) for name in names)]
    parser.formatter_class = _Help
    parser.epilog = _HEAD + "\n".join(f"  {example}" for example in own or examples)


def find_action(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the action that `arguments` name: its usage shows the options that were meant; else `parser`."""
    below = {name: action for found in _list_actions(parser) for name, (action, _) in found.items()}
    for at, word in enumerate(arguments):
        if word in below:
            return find_action(below[word], arguments[at + 1 :])
    return parser


def _list_actions(parser: argparse.ArgumentParser) -> Iterator[Mapping[str, tuple[argparse.ArgumentParser, str]]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield {name: (one, texts.get(name, "")) for name, one in action.choices.items()}


def _begins_with(example: str, words: str) -> bool:
    return f"{example} ".startswith(f"{words} ")


PURPOSES: Mapping[str, Mapping[str, str]] = {
    "Replicate": {
        "preflight": "compare tables with the target's before the first window",
        "window": "run the next window, or list windows",
        "bootstrap": "load the rows that the source already has",
        "status": "how each replication is, how far behind, what to do",
        "doctor": "check everything that a replication needs",
        "config": "check a replication's file, explain its keys",
    },
    "Look at data, compare it": {
        "audit": "a row's history, a table as of a time, a transaction",
        "verify": "compare the target with the lake or the source",
        "validation": "what the validation of changed rows found",
    },
    "Put something right": {
        "ddl": "a DDL that blocks: release, replace, leave out; shard locks",
        "table": "set a table aside, bring it back",
        "checkpoint": "the target's checkpoint: show, set, adopt",
        "repair": "apply the fixes that verify wrote",
        "backfill": "rebuild, repair, replay or undo a past range",
        "restore": "bring a database to a past commit_ts",
        "recover": "finish an open window when the source is gone",
        "stage": "run one stage of a window",
        "maintain": "join small files of the lake, delete old ones",
    },
    "Sources and pumps": {
        "feeder": "read MySQL and MariaDB servers into the pumps",
        "pd": "run the embedded placement driver",
        "pump": "run a pump",
        "pumps": "list pumps",
        "pause-pump": "stop a pump that will come back",
        "offline-pump": "remove a pump",
        "update-pump": "rewrite a pump's state in the registry",
        "txn": "decide a transaction whose outcome is unknown",
        "generate_meta": "write a savepoint with PD's newest timestamp",
    },
    "Consumers of the pumps": {
        "drainers": "list consumers",
        "pause-drainer": "let no window of a replication start",
        "resume-drainer": "let them start again",
        "offline-drainer": "remove a consumer",
        "update-drainer": "rewrite a consumer's state in the registry",
    },
    "Feeds and binlog files": {
        "changefeed": "create, list, pause, resume, remove feeds",
        "feed": "show the messages of a topic or of files",
        "files": "list and verify binlog files",
        "reparo": "apply binlog files to a database",
    },
    "Set up, change over, try": {
        "airflow": "put the DAG files into Airflow's folder",
        "spark": "write the archive for a cluster's executors",
        "completion": "the script for bash, zsh or fish",
        "dm": "take over DM's task and source files",
        "drainer": "take over a drainer's configuration",
        "capture": "replay a recorded TiDB",
        "workload": "write a generated load to the pumps",
    },
}  # fmt: skip
"""By purpose, the commands and a line about each."""
_OTHER = "Other"


def describe_commands(installed: Collection[str]) -> str:
    """The `installed` commands, one a line, by purpose; those of other packages at the end."""
    known = {name for commands in PURPOSES.values() for name in commands}
    others = {name: "" for name in sorted(set(installed) - known)}
    width = max(map(len, installed), default=0)
    parts = []
    for purpose, commands in {**PURPOSES, _OTHER: others}.items():
        lines = [f"{name:{width}}  {text}".rstrip() for name, text in commands.items() if name in installed]
        if lines:
            parts.append(f"{purpose}:\n" + textwrap.indent("\n".join(lines), "  "))
    return "\n\n".join(parts)


def explain_unknown_command(name: str, installed: Collection[str]) -> str:
    """The error for a command that does not exist, with similar ones."""
    similar = difflib.get_close_matches(name, installed, n=3)
    guess = f"; did you mean {' or '.join(similar)}?" if similar else ";"
    return f"there is no command {name!r}{guess} `binlake --help` lists all commands"

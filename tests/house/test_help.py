"""`--help` of every command and action: an example that its parser takes, a help text and a unit for each option."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from binlake.cli import Command, build_parser
from binlake.health import problem

_ROOT = Path(__file__).resolve().parents[2]
_COMMANDS: dict[str, str] = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
    "binlake.commands"
]
_UNITS = re.compile(
    r"second|byte|row|share|commit_ts|port|number|transactions|binlogs|tables|columns|threads|connections|timestamp"
    r"|processes|how many|concurrent",
    re.IGNORECASE,
)


@cache
def load(name: str) -> tuple[Command, argparse.ArgumentParser]:
    command: Command = EntryPoint(name, _COMMANDS[name], "binlake.commands").load()()
    return command, build_parser(name, command)


def list_leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of actions; a command that can do without an action is one too."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not any(action.required for action in below):
        yield parser
    for action in below:
        for child in action.choices.values():
            yield from list_leaves(child)


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_each_action_has_an_example_and_each_example_is_valid(name: str) -> None:
    command, parser = load(name)
    shown = []
    for leaf in list_leaves(parser):
        text = leaf.format_help()
        examples = [line.strip() for line in text.partition("examples:\n")[2].splitlines() if line.strip()]
        assert examples, leaf.prog
        assert all(f"{example} ".startswith(f"{leaf.prog} ") for example in examples), leaf.prog
        assert len(text.partition("\noptions:")[0]) > len(f"usage: {leaf.prog}"), leaf.prog
        shown += examples
    assert sorted(set(shown)) == sorted(command.examples)
    for example in command.examples:
        words = shlex.split(example)
        assert words[:2] == ["binlake", name]
        parser.parse_args(words[2:])


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_each_option_is_explained_with_its_unit_and_belongs_to_its_action(name: str) -> None:
    _, parser = load(name)
    leaves = list(list_leaves(parser))
    names = {leaf.prog.rpartition(" ")[2] for leaf in leaves} - {name}
    for leaf in leaves:
        for action in leaf._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            where = f"{leaf.prog} {action.option_strings or action.dest}"
            assert action.help, where
            if action.type in (int, float):
                assert _UNITS.search(f"{action.metavar} {action.help}"), where
            # "set: …" in the help of an option says that other actions refuse it.
            assert action.help.partition(":")[0] not in names, where


def test_option_of_another_action_is_refused() -> None:
    for words in (
        ("window", "list", "--replication", "f", "--lo", "1"),
        ("window", "run", "--replication", "f", "--sink", "sql"),
        ("checkpoint", "show", "--replication", "f", "--base", "1"),
        ("config", "reference", "f"),
        ("stage", "plan", "--replication", "f", "--lo", "1"),
        ("stage", "merge", "--replication", "f", "--feed", "x"),
        ("ddl", "show", "--replication", "f", "--sql", "x"),
    ):
        with pytest.raises(SystemExit):
            load(words[0])[1].parse_args(words[1:])


@pytest.mark.parametrize(
    "remedy",
    [value for value in vars(problem).values() if isinstance(value, str) and value.startswith("binlake ")],
)
def test_commands_that_problems_name_are_valid(remedy: str) -> None:
    words = shlex.split(remedy)
    load(words[1])[1].parse_args(words[2:])

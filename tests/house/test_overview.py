"""`binlake --help` lists every command by purpose; a wrong command or option is answered with what was meant."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from binlake.cli import prepare
from binlake.common.commandline import PURPOSES, describe_commands, explain_unknown_command, list_replications

_PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
_COMMANDS = _PROJECT["entry-points"]["binlake.commands"]


def test_every_command_is_listed_once_with_a_line_that_fits_a_terminal() -> None:
    listed = [name for commands in PURPOSES.values() for name in commands]
    assert sorted(listed) == sorted(_COMMANDS)
    assert max(map(len, describe_commands(_COMMANDS).splitlines())) < 80


def test_only_installed_commands_are_listed_and_those_of_other_packages_last() -> None:
    assert describe_commands(["pump", "status", "mine"]) == (
        "Replicate:\n  status  how each replication is, how far behind, what to do\n\n"
        "Sources and pumps:\n  pump    run a pump\n\n"
        "Other:\n  mine"
    )


@pytest.mark.parametrize(
    ("name", "answer"),
    [("statsu", "; did you mean status"), ("xyzzy", "; `binlake --help` lists")],
)
def test_unknown_command_is_answered_with_similar_ones(name: str, answer: str) -> None:
    assert answer in explain_unknown_command(name, _COMMANDS)


def test_unknown_option_is_answered_with_the_usage_of_its_action(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        prepare(["audit", "row", "--replication", "orders.toml", "d.t", "1", "--tabel", "d.t"])
    assert end.value.code == 2
    assert "usage: binlake audit row" in (said := capsys.readouterr().err)
    assert "unrecognized arguments: --tabel" in said


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_replications_are_named_as_words_or_as_in_other_commands(command: str) -> None:
    _, args = prepare([command, "orders", "--replication", "users.toml"])
    assert list_replications(args) == ["orders", "users.toml"]
    assert list_replications(prepare([command])[1]) == []

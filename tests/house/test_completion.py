"""`binlake completion` prints scripts that complete commands, actions, options, values and files; real bash."""

from __future__ import annotations

import contextlib
import io
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from binlake import cli
from binlake.cli import build_whole_parser
from binlake.errors import ConfigError

_ROOT = Path(__file__).resolve().parents[2]
_ASK = """
source "$1"
ask() {
    COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
    _shtab_binlake binlake "${COMP_WORDS[COMP_CWORD]}"
    echo "${COMPREPLY[*]}"
}
ask binlake win
ask binlake window ""
ask binlake window list --li
ask binlake verify --against ""
ask binlake window list --replication pypr
ask binlake pumps -pd
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    made = {}
    for shell in ("bash", "zsh", "fish"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert cli.run(["completion", shell]) == 0
        made[shell] = out.getvalue()
    return made


def test_bash_completes_commands_actions_options_values_and_files(scripts: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "binlake.bash"
    script.write_text(scripts["bash"])
    told = subprocess.run(
        ["bash", "-c", _ASK, "bash", str(script)], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert told.stderr == ""
    assert told.stdout.splitlines() == ["window", "run list", "--limit", "lake source", "pyproject.toml", "-pd-urls"]


def test_zsh_and_fish_know_every_command(scripts: dict[str, str]) -> None:
    commands = build_whole_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert {"status", "doctor", "completion", "window"} <= set(commands)
    assert scripts["zsh"].startswith("#compdef binlake")
    assert "complete -c binlake" in scripts["fish"]
    for name in commands:
        assert name in scripts["zsh"], name
        assert name in scripts["fish"], name


def test_command_whose_packages_are_missing_is_completed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = EntryPoint("far", "airflow_is_not_here.far:Far [airflow]", cli.GROUP)
    real = cli.load

    def load(point: EntryPoint) -> cli.Command:
        if point.name == "far":
            raise ConfigError("needs the extra")
        return real(point)

    monkeypatch.setattr(cli, "load", load)
    monkeypatch.setattr(cli, "entry_points", lambda **_: [lacking])
    assert "needs airflow" in build_whole_parser().format_help()

"""docs/operate/feeds.md names only existing commands and options."""

from __future__ import annotations

import argparse
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from binlake.cli import GROUP
from binlake.extras.changefeed.command import ChangefeedCommand

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operate" / "feeds.md").read_text(encoding="utf-8")


# S2-47
def test_page_lists_a_command_for_each_tidb_statement() -> None:
    table = PAGE.partition("## Counterparts of TiDB's statements")[2]
    for statement in ("SHOW PUMP STATUS", "SHOW DRAINER STATUS", "CHANGE PUMP", "CHANGE DRAINER", "SHOW MASTER STATUS"):
        assert statement in table
    commands = {point.name for point in entry_points(group=GROUP)}
    shown = set(re.findall(r"`binlake ([\w-]+)", table)) | set(re.findall(r"`((?:pause|offline)-\w+)`", table))
    assert len(shown) >= 8
    assert shown <= commands


@pytest.mark.parametrize("action", ["create", "list", "query", "pause", "resume", "update", "remove"])
def test_pages_options_are_those_of_the_command(action: str) -> None:
    parser = argparse.ArgumentParser()
    ChangefeedCommand().add_arguments(parser)
    (actions,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    known = {option for one in actions.choices[action]._actions for option in one.option_strings}
    lines = re.findall(rf"^binlake changefeed {action} (.*(?:\n {{10,}}.*)*)", PAGE.partition("```")[2], re.MULTILINE)
    assert lines
    shown = {option for line in lines for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line)}
    assert shown <= known

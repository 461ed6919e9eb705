"""Long commands show one line on a terminal's stderr, and nothing anywhere else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time

import pytest

from binlake.common import terminal
from binlake.common.terminal import ERASE, show_progress
from binlake.repair.rangerepair import BackfillProgress


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_EVERY_S", 0.01)
    monkeypatch.setenv("COLUMNS", "60")


def wait_for(out: io.StringIO, text: str) -> None:
    until = time.monotonic() + 20
    while text not in out.getvalue():
        assert time.monotonic() < until, out.getvalue()
        time.sleep(0.01)


def test_line_says_what_is_done_and_is_gone_at_the_end() -> None:
    out = Terminal()
    with show_progress("verify", out) as tell:
        tell("table 1 of 2, shop.\x1b[2J" + "x" * 100)
        wait_for(out, "verify: table 1 of 2")
    lines = out.getvalue().split(f"{ERASE}\r")
    # The last line that was written is an empty one.
    assert lines[-2:] == ["", ""]
    # A name of a table moves no cursor, and a long line does not wrap.
    assert all(len(line) < 60 and line.isprintable() for line in lines)


def test_nothing_is_written_where_there_is_no_terminal_and_for_work_that_is_done_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    with show_progress("verify", out) as tell:
        tell("table 1 of 2")
        time.sleep(0.05)
    assert out.getvalue() == ""
    monkeypatch.setattr(terminal, "_EVERY_S", 60.0)
    screen = Terminal()
    with show_progress("verify", screen):
        pass
    assert screen.getvalue() == f"{ERASE}\r"


def test_an_error_of_the_work_leaves_no_line() -> None:
    out = Terminal()
    with pytest.raises(ValueError, match="wrong"), show_progress("verify", out):
        raise ValueError("wrong")
    assert out.getvalue().endswith(f"{ERASE}\r")


def test_event_takes_the_place_of_the_line_on_a_terminal_only() -> None:
    code = (
        "import sys, structlog\n"
        "from binlake.common.logs import write_events_to\n"
        "write_events_to(sys.stderr); write_events_to(sys.stderr)\n"
        "structlog.get_logger().info('table_verified')\n"
    )
    master, slave = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stderr=slave, check=True)
    os.close(slave)
    shown = os.read(master, 10_000).decode()
    os.close(master)
    assert (shown.startswith(ERASE), shown.count("table_verified")) == (True, 1)
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stderr


class Windows:
    """Three landed windows, of which the first is done."""

    def list_landed(self, _within: tuple[int, int]) -> list[tuple[int, int]]:
        return [(0, 1), (1, 2), (2, 3)]

    def read_events(self, **_: object) -> list[dict[str, object]]:
        return [{"state": "done", "lo": 0, "hi": 1}]

    def record(self, _event: object) -> None:
        pass


def test_backfill_tells_how_many_windows_are_done() -> None:
    told: list[str] = []
    progress = BackfillProgress(Windows(), "again", 0, 3, told.append)  # type: ignore[arg-type]
    for bounds in progress.list_remaining():
        progress.record_done(bounds, 1, 0.1, {})
    assert told == ["1 of 3 windows", "2 of 3 windows", "3 of 3 windows"]

"""A traceback in the log shows code, but no value of a variable."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from binlake.common.logs import write_events_to


def test_traceback_shows_no_value() -> None:
    before = structlog.get_config()
    stream = io.StringIO()
    try:
        write_events_to(stream)
        password = "s3cret" + "-of-the-target"
        try:
            raise ValueError("refused")
        except ValueError:
            structlog.get_logger().exception("write_failed", table="shop.item")
    finally:
        structlog.configure(**before)
    text = stream.getvalue()
    assert "ValueError: refused" in text
    assert "write_failed" in text
    assert password not in text


_PROGRAM = """
import structlog
from binlake.cli import run
{first}
secret = "in-a-" + "variable"
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("failed")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("start", "first"),
    [([], "run(['checkpoint', 'show', '--replication', '/none.toml'])"), (["-m", "binlake.common.program"], "")],
    ids=["a command", "a stage"],
)
def test_programs_log_tracebacks_without_values(tmp_path: Path, start: list[str], first: str) -> None:
    (tmp_path / "failing.py").write_text(_PROGRAM.format(first=first))
    way = [*(start or ["-m"]), "failing"]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, *way], capture_output=True, text=True, check=False, env=where)
    shown = done.stdout + done.stderr
    assert "ZeroDivisionError: division by zero" in shown
    assert "in-a-variable" not in shown


@pytest.mark.process
def test_logs_are_json_objects_on_demand_and_hold_what_is_hostile(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        _PROGRAM.format(first="run(['checkpoint', 'show', '--replication', '/n\\x1b[31mo\\n{}\"</script>.toml'])")
    )
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "BINLAKE_LOG_FORMAT": "json"}
    done = subprocess.run([sys.executable, "-m", "failing"], capture_output=True, text=True, check=False, env=where)
    ended, failed = (json.loads(line) for line in done.stderr.splitlines())
    assert (ended["event"], ended["level"]) == ("command_failed", "error")
    assert ended["where"]["file"] == '/n\x1b[31mo\n{}"</script>.toml'
    assert "\x1b" not in done.stderr
    assert (failed["event"], failed["level"], failed["timestamp"][-1]) == ("failed", "error", "Z")
    assert "ZeroDivisionError: division by zero" in failed["exception"]
    assert "in-a-variable" not in done.stderr


@pytest.mark.process
def test_an_unknown_format_of_the_log_is_refused() -> None:
    command = [sys.executable, "-m", "binlake.cli", "pump", "config"]
    where = {**os.environ, "BINLAKE_LOG_FORMAT": "xml"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=where)
    assert (done.returncode, done.stderr) == (
        1, "error: unknown format of the log [BINLAKE_LOG_FORMAT=xml] Hint: text or json\n"
    )  # fmt: skip

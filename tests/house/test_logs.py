"""A traceback in the log shows code, but no value of a variable."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from binlake.base.logs import write_events_to


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
    [([], "run(['checkpoint', 'show', '--replication', '/none.toml'])"), (["-m", "binlake.base.program"], "")],
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

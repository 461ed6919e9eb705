"""How a program of Binlake starts: its garbage collector looks rarely, whichever way it is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from binlake.base.garbage import THRESHOLDS

pytestmark = pytest.mark.process

_SHOW = "import atexit, gc\natexit.register(lambda: print('thresholds', gc.get_threshold()))\n"


@pytest.mark.parametrize(
    ("program", "start"),
    [
        (f"{_SHOW}from binlake.cli import main\nmain()", ["-m", "shown"]),
        (_SHOW, ["-m", "binlake.base.program", "shown"]),
    ],
    ids=["the command binlake", "a stage"],
)
def test_a_program_collects_garbage_rarely(tmp_path: Path, program: str, start: list[str]) -> None:
    (tmp_path / "shown.py").write_text(program)
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, *start], capture_output=True, text=True, check=False, env=where)
    assert f"thresholds {THRESHOLDS}" in done.stdout, done.stderr

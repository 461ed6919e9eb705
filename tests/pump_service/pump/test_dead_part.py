"""A pump with a dead thread must exit, whatever fails: a half-dead pump looks alive and serves nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys, threading
from binlake.pump_service.pump.command import _end_the_process

class Full:
    def write(self, text): raise OSError(28, "No space left on device")
    def flush(self): raise OSError(28, "No space left on device")

if {full}:
    sys.stderr = Full()
threading.excepthook = _end_the_process
threading.Thread(target=lambda: 1 / 0, name="pump-index").start()
threading.Event().wait(200)
"""


@pytest.mark.parametrize("full", [False, True])
def test_a_dead_thread_ends_the_process_even_if_its_log_cannot_be_written(full: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(full=full)], capture_output=True, timeout=300)
    assert done.returncode == os.EX_SOFTWARE

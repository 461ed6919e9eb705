"""A pump whose thread died must end, whatever stands in the way: a half-dead pump looks alive and serves nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys, threading
from pump_service.pump.command import _end_the_process

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
def test_a_dead_part_ends_the_process_even_when_its_log_takes_no_text(full: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(full=full)], capture_output=True, timeout=300)
    assert done.returncode == os.EX_SOFTWARE

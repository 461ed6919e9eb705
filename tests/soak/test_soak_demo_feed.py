"""`make demo FEED=1` as a user runs it: too long for every run of CI, which has the demo without a feed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.e2e, pytest.mark.timeout(1200)]


# S0-04, S0-08
def test_a_consumer_of_the_demos_feed_gets_every_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.local.demo", "--feed", "--folder", str(tmp_path / "demo")]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"topic bank_acct_\d\d +1,000 rows  equal", done.stdout)) == 20
    assert "the consumer's 20 tables: equal to the target" in done.stdout

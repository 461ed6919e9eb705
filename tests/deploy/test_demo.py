"""`make demo` and `make stop`, run as a user does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from support.airflow_home import SLOW_PACE

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_S + 60)]


def _demo(folder: Path, *words: str) -> subprocess.Popen[str]:
    # A script's background job (`&`) ignores Ctrl-C, and so do its children, including these tests; so reset the
    # handler.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "deploy.local.demo", "--folder", str(folder)]
    return subprocess.Popen(
        [*command, *words],
        cwd=ROOT,
        env={**os.environ, **SLOW_PACE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _list_remaining(folder: Path) -> list[str]:
    """Processes that still run with a file of the demo in their command, or as a part of its Airflow."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if str(folder) in words or process.environ().get("AIRFLOW_HOME", "").startswith(str(folder)):
                found.append(words)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_demo_ends_equal_stays_on_request_and_stops_cleanly(tmp_path: Path) -> None:
    # S0-01, S0-04, S0-05, S3-05; the demo itself prints every figure.
    folder = tmp_path / "demo"
    # Fewer and larger windows than in `make demo`, but the same compared states.
    with _demo(folder, "--keep", "--rate", "2000") as demo:
        told, _ = demo.communicate(timeout=LIMIT_S)
    try:
        assert demo.returncode == 0, told
        windows = re.findall(r"window \d+ \(\d+, \d+\]", told)
        states = re.findall(r"target at \d+ \(\w+\): 20 tables, 20000 rows: equal", told)
        inside = re.findall(r"lake as of \d+ .* inside the window .*: 20 tables, 20000 rows: equal", told)
        tables = re.findall(r"^ +bank\.acct_\d\d +1,000 rows  equal$", told, re.MULTILINE)
        assert len(windows) >= 4
        assert (len(states), len(inside), len(tables)) == (4, 2, 20)
        assert "differs" not in told
        assert '"consistent": true, "commitTS": 470614453366816768' in told
        assert re.search(r"binlake audit row bank\.acct_00 0: \d+ changes", told)
        page = re.search(r"left running: (http://127\.0\.0\.1:\d+)", told)
        login = re.search(r"login (\w+) / (\w+)", told)
        assert page
        assert login
        account = {"username": login[1], "password": login[2]}
        assert httpx.post(f"{page[1]}/auth/token", json=account, timeout=120).status_code == httpx.codes.CREATED
    finally:
        stopped = subprocess.run(
            [sys.executable, "-m", "deploy.local.stop", str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert stopped.returncode == 0, stopped.stderr
    assert "airflow-scheduler" in stopped.stdout
    assert _list_remaining(folder) == []


@pytest.mark.soak
def test_ctrl_c_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with _demo(folder) as demo:
        until = time.monotonic() + 300
        while not (folder / "airflow" / "airflow-scheduler.log").exists():
            assert demo.poll() is None
            assert time.monotonic() < until, os.listdir(folder)
            time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        told, _ = demo.communicate(timeout=400)
    assert demo.returncode == 130, told
    assert "all servers have stopped" in told
    assert _list_remaining(folder) == []

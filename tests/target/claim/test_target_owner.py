"""The owner of a lease is recognized, and known to be dead or alive, even if the machine's clock is set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from binlake.common import process
from binlake.common.process import start_of
from binlake.target.claim.fence import LeaseHolder


def test_changed_clock_does_not_change_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    # a live holder is not taken over; the kernel derives the machine's start from the current clock
    times = iter(range(1_000_000))
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: float(next(times)))
    assert psutil.Process().create_time() != psutil.Process().create_time()
    me = LeaseHolder.from_this_process()
    assert me == LeaseHolder.from_this_process()
    assert not me.is_dead()
    assert LeaseHolder.parse(str(me)) == me


def test_ended_process_is_dead_reaped_or_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = LeaseHolder(LeaseHolder.from_this_process().host, child.pid, start_of(child.pid) or 0)
    assert not owner.is_dead()
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner.is_dead()
    child.wait()
    assert owner.is_dead()


def test_another_process_with_the_same_pid_is_not_the_owner() -> None:
    me = LeaseHolder.from_this_process()
    assert LeaseHolder(me.host, me.pid, me.started + 1).is_dead()
    assert not LeaseHolder("elsewhere", me.pid, me.started + 1).is_dead()


def test_command_with_brackets_and_spaces_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, behind = "7 (a) b (c", " ".join(["S", *map(str, range(4, 53))])
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"{before}) {behind}\n")
    monkeypatch.setattr(process, "_PROC", tmp_path)
    monkeypatch.setattr(process, "_read_boot_id", lambda: 5)
    assert start_of(7) == int("220000000005")  # field 22: the start time
    assert start_of(8) is None

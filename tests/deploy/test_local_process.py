"""A child is stopped with everything that it started; its record is enough to stop it later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.local.ports import free_port, free_ports, is_open, read_kernel_range
from deploy.local.process import Child, ProcessError, is_alive, list_members, stop_recorded
from deploy.setup.common import REPOSITORY

pytestmark = pytest.mark.process

# Starts one child in its own process group (as pyspark.daemon does) and one that ignores SIGTERM.
_FAMILY = """
import os, signal, subprocess, sys, time
sleep = "import signal, sys, time; {} ; print('x', flush=True); time.sleep(600)"
deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
a = subprocess.Popen([sys.executable, "-c", sleep.format("1")], process_group=0, stdout=subprocess.PIPE)
b = subprocess.Popen([sys.executable, "-c", sleep.format(deaf)], stdout=subprocess.PIPE)
a.stdout.readline(), b.stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""


def _family(folder: Path) -> Child:
    child = Child("family", [sys.executable, "-c", _FAMILY], folder)
    return child.start().wait_until(lambda: "ready" in child.log.read_text(), 120)


def test_stop_ends_other_process_groups_and_processes_that_ignore_sigterm(tmp_path: Path) -> None:
    child = _family(tmp_path)
    family = list_members(child.pid or 0)
    assert len(family) == 3
    child.stop(grace_s=0.5)
    assert child.pid is None
    assert not [process for process in family if is_alive(process)]


def test_kill9_leaves_no_process_either(tmp_path: Path) -> None:
    child = _family(tmp_path)
    family = list_members(child.pid or 0)
    child.kill9()
    assert not [process for process in family if is_alive(process)]


def test_processes_of_a_dead_leader_are_ended(tmp_path: Path) -> None:
    child = _family(tmp_path)
    family = list_members(child.pid or 0)
    psutil.Process(child.pid).kill()
    child.stop(grace_s=0.5)
    assert not [process for process in family if is_alive(process)]


def test_child_that_ends_by_itself_is_reported_with_its_log(tmp_path: Path) -> None:
    child = Child("short", [sys.executable, "-c", "raise SystemExit('no disk')"], tmp_path).start()
    with pytest.raises(ProcessError, match="short ended: no disk"):
        child.wait_until(lambda: False, 120)


def test_child_that_does_not_serve_in_time_is_reported(tmp_path: Path) -> None:
    child = _family(tmp_path)
    with pytest.raises(ProcessError, match="family does not serve after 0 s"):
        child.wait_until(lambda: False, 0.1)
    child.kill9()


def test_missing_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="cannot be started"):
        Child("nothing", ["/no/such/program"], tmp_path).start()


def test_recorded_child_can_be_stopped(tmp_path: Path) -> None:
    family = list_members(_family(tmp_path).pid or 0)
    assert stop_recorded(tmp_path, grace_s=0.5) == ["family"]
    assert not [process for process in family if is_alive(process)]
    assert stop_recorded(tmp_path) == []


def test_outdated_record_stops_no_other_process(tmp_path: Path) -> None:
    other = Child("other", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "other").start()
    record = {"pid": other.pid, "start": 7}
    (tmp_path / "old.process").write_text(json.dumps(record))
    (tmp_path / "other/other.process").unlink()
    assert stop_recorded(tmp_path) == []
    assert other.pid is not None
    other.kill9()


def test_free_ports_are_different_and_closed() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert not any(is_open(port) for port in [*ports, free_port()])


def test_free_port_is_not_given_away_before_it_is_bound() -> None:
    # A server binds the port seconds later; until then, neither the kernel nor another process of Binlake may use it.
    ours = free_ports(60)  # more than one block
    assert not set(ours) & set(read_kernel_range())
    program = "from deploy.local.ports import free_ports; print(*free_ports(60), flush=True); input()"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    theirs = [int(port) for other in others if other.stdout for port in other.stdout.readline().split()]
    more = free_ports(60)
    for other in others:  # ports are released when their process ends, so keep the processes alive until here
        other.communicate("\n", timeout=120)
    assert len({*ours, *theirs, *more}) == 4 * 60


def test_fork_gets_its_own_ports() -> None:
    program = """
import os
from deploy.local.ports import free_ports
before = free_ports(3)
child = os.fork()
own = free_ports(3) + (before if child else [])
os.write(1, (" ".join(map(str, own)) + "\\n").encode())  # in one piece: two write here
if child:
    os.wait()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True)
    assert len(set(done.stdout.split())) == 9

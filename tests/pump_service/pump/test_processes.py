"""Several pumps started by one command: each has its port, folder, log and registration; crashes are logged, and
crashed pumps restarted."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pump_helpers import until

from binlake.cluster.placement import EtcdClient, NodeRegistry
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.command import PumpCommand, Supervisor, build_commands
from binlake.pump_service.pump.settings import read_settings

pytestmark = pytest.mark.process


def planned(*words: str) -> list[list[str]]:
    parser = argparse.ArgumentParser()
    PumpCommand().add_arguments(parser)
    args = parser.parse_args(words)
    return [command[4:] for command in build_commands(read_settings(args, {}), args, args.processes)]


def test_processes_differ_in_port_folder_and_name_and_share_all_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "pump.toml"
    file.write_text("gc = 3")
    first, second = planned(
        "--processes", "2", "--addr", "0.0.0.0:8250", "--advertise-addr", "host:8250", "--node-id", "p",
        "--data-dir", "/d", "--pd-urls", "http://a:1", "--config", str(file), "--socket", "/run/p.sock",
    )  # fmt: skip
    assert set(first) ^ set(second) == {
        "--addr=0.0.0.0:8250", "--addr=0.0.0.0:8251",
        "--advertise-addr=host:8250", "--advertise-addr=host:8251",
        "--node-id=p-0", "--node-id=p-1",
        "--data-dir=/d/0", "--data-dir=/d/1",
        "--log-file=/d/pump.0.log", "--log-file=/d/pump.1.log",
        "--socket=/run/p.sock.0", "--socket=/run/p.sock.1",
    }  # fmt: skip
    assert set(first) & set(second) == {"--pd-urls=http://a:1", f"--config={file}"}


def test_each_process_chooses_a_free_port_and_its_name_by_address() -> None:
    first, second = planned("--processes", "2", "--addr", "127.0.0.1:0", "--log-file", "/l/p.log")
    assert "--addr=127.0.0.1:0" in first
    assert "--addr=127.0.0.1:0" in second
    assert "--log-file=/l/p.1.log" in second
    assert not [word for word in first if word.startswith("--node-id")]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_crash_is_logged_and_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert Supervisor([python("pass"), python("raise SystemExit(3)")], restart=False).run() == 1
    output = capsys.readouterr().out
    assert "pump_died" in output
    assert "status=3" in output


def test_exit_code_is_0_when_all_pumps_leave_cleanly() -> None:
    assert Supervisor([python("pass"), python("pass")], restart=True).run() == 0


def test_a_crashed_pump_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.command._BACKOFF_S", 0.01)
    mark = tmp_path / "died"
    code = f"import pathlib, sys; p = pathlib.Path({str(mark)!r}); sys.exit(0 if p.exists() else p.touch() or 9)"
    assert Supervisor([python(code)], restart=True).run() == 0
    assert mark.exists()


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[PlacementDriver]:
    with PlacementDriver(tmp_path / "pd") as driver:
        yield driver


@pytest.fixture
def registry(pd: PlacementDriver) -> Iterator[NodeRegistry]:
    with contextlib.closing(EtcdClient([pd.url])) as client:
        yield NodeRegistry(client)


def states(registry: NodeRegistry) -> dict[str, str]:
    return {pump.node_id: pump.state for pump in registry.list_pumps()}


def test_three_real_pumps_one_killed_all_stopped(tmp_path: Path, pd: PlacementDriver, registry: NodeRegistry) -> None:
    command = [sys.executable, "-m", "binlake.cli", "pump", "--processes", "3", "--restart", "--addr", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path / "data"), "--node-id", "p", "--pd-urls", pd.url]
    command += ["--stop-write-at-available-space", "0", "--heartbeat-interval", "0.2"]
    with (tmp_path / "told").open("w") as told:
        parent = subprocess.Popen(command, stdout=told, stderr=told, env={**os.environ})
    try:
        online = dict.fromkeys(("p-0", "p-1", "p-2"), "online")
        until(lambda: states(registry) == online, "three pumps are online", 120)
        assert len({pump.host for pump in registry.list_pumps()}) == 3
        victim = next(one for one in psutil.Process(parent.pid).children() if "--node-id=p-1" in one.cmdline())
        victim.kill()
        said = tmp_path / "told"
        back = lambda: "pump p-1 listens" in said.read_text().partition("pump_died")[2]  # noqa: E731
        until(back, "the killed pump is online again", 120)
        assert len({pump.host for pump in registry.list_pumps()}) == 3
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(120) == 0
    finally:
        for child in psutil.Process(parent.pid).children() if parent.poll() is None else []:
            child.kill()
        parent.kill()
        parent.wait()
    assert states(registry) == dict.fromkeys(("p-0", "p-1", "p-2"), "paused")
    assert "pump_died" in (tmp_path / "told").read_text()
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"0", "1", "2"} | {
        f"pump.{n}.log" for n in range(3)
    }
    assert "pump_online" in (tmp_path / "data" / "pump.2.log").read_text()

"""`binlake doctor` runs every check, each within its time, and names the remedy; real PD, status port, lake, target."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from health.conftest import Fleet
from support.mariadb import MariaDb, execute
from support.replication_files import write_replication

from binlake import tso
from binlake.cli import run
from binlake.cluster.node import NodeStatus
from binlake.cluster.placement import EtcdClient, NodeRegistry
from binlake.config import load_replication
from binlake.errors import SourceUnavailable
from binlake.health import checks as healthchecks
from binlake.health import doctor
from binlake.health.checks import Check, DoctorLine, check_skew, measure_skew_s
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.commands.preflight import judge_java
from binlake.target.commands.checkpoint import set_checkpoint

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "doctor.md"
_OF_MACHINE = ("Spark", "disks")
_NOBODY = "127.0.0.1:1"
Verdicts = dict[tuple[str, str], tuple[str, str, str]]


@pytest.fixture
def sick(fleet: Fleet, empty_mariadb: MariaDb, tmp_path: Path) -> Iterator[Path]:
    """A replication whose surroundings are well, with a pump that has sent no heartbeat for long."""
    server = empty_mariadb
    path = write_replication(
        tmp_path,
        "sick",
        source=f'pd-urls = "{fleet.pd_url}"\nstatus-url = "{fleet.feeder.port.url}"\ncluster-id = "7"',
        target=f'db-type = "mariadb"\nhost = "{server.host}"\nport = {server.port}\nuser = "{server.user}"',
    )
    replication = load_replication(path)
    log, now = WindowLog(LakePaths.of(replication)), tso.compose(1_700_000_000_000)
    for stage in ("start", "land", "finalize"):
        log.record(WindowEvent(stage, now - 1, now, "done", 3, 0.5, "r"))
    assert replication.target is not None
    set_checkpoint(replication, replication.target, 7, now)
    etcd = EtcdClient([fleet.pd_url])
    NodeRegistry(etcd).put_pump(NodeStatus("pump-1", _NOBODY, "online", max_commit_ts=now, update_ts=now))
    yield path
    etcd.close()


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Verdicts]:
    capsys.readouterr()
    status = run(["doctor", *arguments, "--output", "json"])
    told: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return status, {(one["subject"], one["check"]): (one["verdict"], one["found"], one["remedy"]) for one in told}


@pytest.mark.mariadb
def test_everything_is_examined_and_the_example_of_the_docs_is_the_output(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = examine(capsys, str(sick))
    # These depend on the machine.
    told = {place: row for place, row in told.items() if place[0] not in _OF_MACHINE}
    failed = {place: row for place, row in told.items() if row[0] == "failure"}
    assert (status, list(failed)) == (5, [("pumps", "pump pump-1")])
    assert failed["pumps", "pump pump-1"][2] == "start it: its data is still needed"
    for place in (("PD", "cluster"), ("PD", "clock"), ("source", "heard"), ("lake", "commits"), ("target", "server"),
                  ("target", "privileges"), ("target", "checkpoint"), ("target", "clock")):  # fmt: skip
        assert told[place][0] == "ok", place
    example = re.search(r"\$ binlake doctor orders\n(.*?)```", _PAGE.read_text(), re.S)
    assert example is not None
    listed = [tuple(re.split(r"\s{2,}", line.strip())[:3]) for line in example[1].splitlines()]
    shown = [row for row in listed if len(row) == 3 and row[0] not in ("SUBJECT", *_OF_MACHINE)]
    assert shown == [(*place, row[0]) for place, row in told.items()]


@pytest.mark.mariadb
def test_row_moved_by_another_hand_is_found_with_the_command_that_believes_it(
    sick: Path, mariadb: MariaDb, capsys: pytest.CaptureFixture[str]
) -> None:
    #
    execute(mariadb, "UPDATE tidb_binlog.checkpoint SET checkPoint = REPLACE(checkPoint, ':4', ':3')")
    verdict, found, remedy = examine(capsys, str(sick))[1]["target", "checkpoint"]
    assert (verdict, "not as Binlake wrote it" in found) == ("failure", True)
    assert "binlake checkpoint adopt" in remedy


@pytest.mark.mariadb
def test_user_without_privileges_is_told_which_to_grant(
    sick: Path, mariadb: MariaDb, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(
        mariadb,
        "CREATE OR REPLACE USER reader",
        "GRANT SELECT, INSERT, UPDATE (a) ON *.* TO reader".replace(", UPDATE (a)", ""),
    )
    sick.write_text(sick.read_text().replace(f'user = "{mariadb.user}"', 'user = "reader"'))
    try:
        verdict, found, remedy = examine(capsys, str(sick))[1]["target", "privileges"]
    finally:
        execute(mariadb, "DROP USER reader")
    assert (verdict, found) == ("failure", "missing for reader: UPDATE, DELETE, CREATE, ALTER, DROP, INDEX")
    assert remedy == "GRANT UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON *.* TO reader"


@pytest.mark.mariadb
def test_servers_of_the_feeder_are_checked_as_by_feeder_check(
    mariadb: MariaDb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "feeder.toml"
    at = f'host = "{mariadb.host}"\nport = {mariadb.port}\nuser = "{mariadb.user}"\n'
    file.write_text(f'data-dir = "{tmp_path}"\n[tracker]\n{at}[[source]]\nname = "one"\n{at}')
    told = examine(capsys, "crm", "--feeder", str(file))[1]
    assert told["feeder", "log_bin"][2] in ("", "start the server with --log-bin")
    assert told["feeder", "binlog_row_image"][1].startswith(f"one {mariadb.host}:{mariadb.port}: ")
    assert told["feeder", "clock"][0] == "ok"
    assert told["disks", "feeder"][1].endswith(f"at {tmp_path}")


def test_file_that_is_not_valid_and_a_password_that_is_not_set_stop_no_other_check(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "bad.toml"
    broken.write_text("name = 1\n")
    status, told = examine(capsys, str(broken))
    assert (status, told["config", "file"][0], told["config", "file"][1][:6]) == (5, "failure", "`name`")
    assert ("versions", "packages") in told
    path = write_replication(tmp_path, "shy", source=f'pd-urls = "{fleet.pd_url}"')
    told = examine(capsys, str(path))[1]
    assert told["config", "passwords"][::2] == ("failure", "export BINLAKE_TEST_UNSET_PASSWORD=…")
    # One cause is one failure.
    assert told["target", "server"][:2] == ("not applicable", "not known while this fails: config, passwords")
    assert told["PD", "cluster"][0] == "ok" or told["PD", "cluster-id"][0] == "warning"


@pytest.mark.long
def test_server_that_accepts_and_is_silent_costs_only_its_own_check(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        path = write_replication(
            tmp_path, "stuck", source=f'pd-urls = "{fleet.pd_url}"',
            target=f'db-type = "mariadb"\nhost = "127.0.0.1"\nport = {port}\nconnect-timeout-s = 60',
        )  # fmt: skip
        told = examine(capsys, str(path), "--timeout", "3")[1]
    assert told["target", "server"][:2] == ("failure", "no answer within 3 s")
    assert told["PD", "cluster"][0] == "ok"


def test_a_fault_of_a_check_is_a_finding_and_the_others_answer() -> None:
    release = threading.Event()

    def fail(error: Exception) -> list[DoctorLine]:
        raise error

    checks = [
        Check("a", "hangs", lambda: [DoctorLine("hangs", "ok", str(release.wait(30)))]),
        Check("b", "raises", lambda: fail(ValueError("secret"))),
        Check("c", "refuses", lambda: fail(SourceUnavailable("nobody", hint="start it"))),
        Check("d", "refuses too", lambda: fail(SourceUnavailable("nobody", hint="start it"))),
        Check("e", "works", lambda: [DoctorLine("works", "ok", "fine")]),
    ]
    try:
        told = doctor.examine(checks, 0.5)
    finally:
        release.set()
    assert [(subject, one.verdict, one.found) for subject, one in told] == [
        ("a", "failure", "no answer within 0.5 s"),
        ("b", "failure", "the check itself failed: ValueError"),
        ("c", "failure", "nobody"),
        ("d", "not applicable", "not known while this fails: c, refuses"),
        ("e", "ok", "fine"),
    ]
    assert told[2][1].remedy == "start it"


@pytest.mark.parametrize(("skew_s", "verdict"), [(0.0, "ok"), (-0.9, "ok"), (1.1, "warning"), (-3600.0, "failure")])
def test_skew_of_a_second_is_a_warning_and_of_a_minute_a_failure(skew_s: float, verdict: str) -> None:
    finding = check_skew("clock", skew_s, "PD")
    assert (finding.verdict, bool(finding.remedy)) == (verdict, verdict != "ok")


def test_time_of_the_answer_is_no_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, skew_s in ((100.0, 0.0), (104.0, 0.0), (107.0, 2.0), (97.0, -3.0)):
        clock = iter((100.0, 105.0))
        monkeypatch.setattr("binlake.health.checks.time.time", lambda clock=clock: next(clock))
        assert measure_skew_s(lambda there=there: there) == skew_s


@pytest.mark.parametrize(("free", "verdict"), [(11 << 30, "ok"), (5 << 30, "warning"), (1 << 20, "failure")])
def test_disk_is_judged_by_its_free_bytes(
    free: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthchecks.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": free}))
    finding = healthchecks.check_disk("lake", tmp_path / "not" / "there", "lake.path")
    assert (finding.verdict, f"at {tmp_path}" in finding.found) == (verdict, True)


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ('NOTE: Picked up JDK_JAVA_OPTIONS: -XX:ReservedCodeCacheSize=24m\nopenjdk version "17.0.15" 2025-04-15', "ok"),
        ('java version "1.8.0_202"', "failure"),
        ("cannot execute", "failure"),
    ],
)
def test_java_is_judged_by_the_line_with_its_version(told: str, verdict: str, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<END\n{told}\nEND\n")
    java.chmod(0o755)
    assert judge_java(str(java)).verdict == verdict

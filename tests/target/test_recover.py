"""Recovery runs in exactly one of four cases; in the other cases nothing is written to the target."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.children import end_children, wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.windows import CLUSTER, NAME, Window, apply_in_child, at, signal_me, target_of

from binlake.config import Replication
from binlake.config.model import LakeSection
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ConfigError, LostRange, Permanent
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pump_service.pd import PlacementDriver
from binlake.spark_jobs.commands import restore
from binlake.spark_jobs.commands.main import run_job
from binlake.spark_jobs.commands.recover import recover
from binlake.spark_jobs.commands.table import set_aside
from binlake.spark_jobs.job import runner
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.target import apply_window
from binlake.target import recover as recovering
from binlake.target.recover import judge_recovery
from binlake.target.relay import RelayLog

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

CONSISTENT, HALF_WAY = (
    '{"consistent":true,"commitTS":200,"ts-map":{}}',
    '{"consistent":false,"commitTS":200,"ts-map":{}}',
)


@pytest.fixture
def target(empty_server: MariaDb) -> Iterator[TargetSection]:
    """The session's server with app.t(id, v), and no checkpoint."""
    execute(empty_server, "CREATE DATABASE app", "CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20))")
    yield target_of(empty_server, mode="parallel", worker_count=2)
    end_children()


@pytest.fixture
def pd_url(tmp_path: Path) -> Iterator[str]:
    """A placement driver that answers."""
    driver = PlacementDriver(tmp_path / "pd", cluster_id=CLUSTER).start()
    yield driver.url
    driver.stop()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens; the bound port stays reserved meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def replication(target: TargetSection | None, pd: str, patience_s: float = 0.3, **more: Any) -> Replication:
    """`patience_s`: the timeout for the PD; short for addresses that do not answer anyway."""
    section = {} if target is None else {"target": target.model_dump(by_alias=True)}
    source = {"pd-urls": [pd], "status-url": "http://127.0.0.1:1", "timeout-s": patience_s}
    return Replication.model_validate({"name": NAME, "source": source, "lake": {"path": "/nowhere"}, **section, **more})


def no_context(_: Replication) -> Any:
    raise AssertionError("recovery must need neither Spark nor the lake")


def kill_apply(target: TargetSection, window: Window, relay: RelayLog | None = None) -> None:
    """Kill an apply after its first statement."""
    assert (
        wait_for_exit(apply_in_child(target, window, at("batch", 1, signal_me(signal.SIGKILL)), relay))
        == -signal.SIGKILL
    )


def checkpoint(server: MariaDb) -> str:
    return str(rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])


@pytest.mark.parametrize(
    ("answers", "stored", "state"),
    [
        (True, CONSISTENT, "pd-answers"),
        (True, HALF_WAY, "pd-answers"),
        (False, CONSISTENT, "nothing-to-do"),
        (False, HALF_WAY, "recover"),
        (True, None, "pd-answers"),
        (False, None, "nothing-to-do"),
    ],
)
def test_pd_and_checkpoint_decide_without_any_write(
    server: MariaDb, target: TargetSection, pd_url: str, nobody: str, answers: bool, stored: str | None, state: str
) -> None:
    # S3-10, S3-12
    if stored is not None:
        apply_window(target, Window(0, 200).manifest(), Window(0, 200))
        execute(server, f"UPDATE tidb_binlog.checkpoint SET checkPoint = '{stored}'")
    own = replication(target, pd_url, 60) if answers else replication(target, nobody)
    execute(server, "SET GLOBAL log_output = 'TABLE'", "TRUNCATE mysql.general_log", "SET GLOBAL general_log = 1")
    try:
        if state == "recover":
            assert judge_recovery(own).state == state
        else:
            results = recover(own, no_context)
            assert [result.state for result in results] == [state]
    finally:
        execute(server, "SET GLOBAL general_log = 0")
    query = "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE command_type = 'Query'"
    words = {str(said).split()[0].upper() for (said,) in rows(server, query) if "general_log" not in str(said)}
    assert words <= {"SELECT", "SET", "SHOW", "START"}


def test_recovery_finishes_the_open_window(target: TargetSection, nobody: str) -> None:
    # S3-10: with its bounds and the manifest with which it was opened
    window = Window(0, 300).put((1, "a")).put((2, "b"))
    kill_apply(target, window)
    verdict = judge_recovery(replication(target, nobody))
    assert (verdict.state, verdict.commit_ts, verdict.window) == ("recover", 0, (0, 300))
    assert verdict.opened is not None
    assert verdict.opened.manifest == window.manifest().compute_digest()


def test_recovery_needs_only_target_and_relay_files(
    server: MariaDb, target: TargetSection, nobody: str, tmp_path: Path
) -> None:
    # S3-03, S3-09, S3-11: the process imports neither Spark nor the lake's library nor Airflow
    log_dir = tmp_path / "relay"
    log_dir.mkdir()
    own = replication(target, nobody, relay={"log-dir": str(log_dir)})
    window = Window(0, 300).put((1, "a")).put((2, "b")).into(target, ("app", "t"))
    kill_apply(target, window, RelayLog.of(own))
    config, result = tmp_path / "shop.toml", tmp_path / "result.json"
    config.write_text(toml_of(target, nobody))
    program = (
        "import sys; from binlake.cli import run;"
        "status = run(sys.argv[1:]);"
        "print([m for m in ('pyspark', 'delta', 'deltalake', 'airflow') if m in sys.modules]); sys.exit(status)"
    )
    arguments = ["recover", "--replication", str(config), "--log-dir", str(log_dir), "--result", str(result)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["the target equals the source at 300; checkpoint consistent=true", "[]"]
    outcome = json.loads(result.read_text())
    assert outcome["ok"] is True
    assert [r["state"] for r in outcome["results"]] == ["done", "recovered"]
    (wrote,) = outcome["results"][0]["detail"]["lineage"]["wrote"]
    assert (wrote["db"], wrote["table"], wrote["columns"]) == ("app", "t", [])
    assert outcome["results"][-1] | {"seconds": 0, "detail": {}} == {
        "stage": "recover", "state": "recovered", "lo": "0", "hi": "300", "rows": 2, "seconds": 0, "blocked_by": "",
        "detail": {},
    }  # fmt: skip
    assert checkpoint(server) == '{"consistent":true,"commitTS":300,"ts-map":{},"schema-version":1}'
    # S3-11, S3-12: the next run, with PD still unreachable, does nothing
    assert [r.state for r in recover(own, no_context)] == ["nothing-to-do"]


def test_job_writes_its_result(target: TargetSection, nobody: str, tmp_path: Path) -> None:
    # S3-12: as every stage does, for its caller
    config, result = tmp_path / "shop.toml", tmp_path / "result.json"
    config.write_text(toml_of(target, nobody))
    outcome = run_job(["recover", "--replication", str(config), "--result", str(result)])
    assert outcome == json.loads(result.read_text())
    assert [(one["stage"], one["state"]) for one in outcome["results"]] == [("recover", "nothing-to-do")]
    kill_apply(target, Window(0, 300).put((1, "a")).put((2, "b")))
    outcome = run_job(["recover", "--replication", str(config), "--result", str(result)])
    assert (outcome["ok"], outcome["error"]["kind"], outcome["error"]["class"]) == (False, "Permanent", "LostRange")


def toml_of(target: TargetSection, pd: str) -> str:
    address = f'host = "{target.host}"\nport = {target.port}\nuser = "{target.user}"\ndb-type = "{target.db_type}"'
    source = f'[source]\npd-urls = ["{pd}"]\ntimeout-s = 0.3'
    return f'name = "{NAME}"\n{source}\n[lake]\npath = "/nowhere"\n[target]\n{address}\n'


def test_missing_source_of_the_open_window_is_reported(
    server: MariaDb, target: TargetSection, nobody: str, tmp_path: Path
) -> None:
    # S3-13: nothing is written to the target, and the range is named
    kill_apply(target, Window(0, 300).put((1, "a")).put((2, "b")))
    before = (
        rows(server, "SELECT * FROM app.t"),
        checkpoint(server),
        rows(server, "SELECT * FROM tidb_binlog.binlake_fence"),
    )
    with pytest.raises(LostRange, match="there are no relay files") as caught:
        recover(replication(target, nobody), no_context)
    assert "0-300" in str(caught.value)
    with pytest.raises(LostRange, match="no relay file has this window") as caught:
        recover(replication(target, nobody, relay={"log-dir": str(tmp_path)}), no_context)
    assert "0-300" in str(caught.value)
    with pytest.raises(LostRange, match="no landed window can be applied"):
        recover(replication(target, nobody), no_context, roll_forward=True)
    after = (
        rows(server, "SELECT * FROM app.t"),
        checkpoint(server),
        rows(server, "SELECT * FROM tidb_binlog.binlake_fence"),
    )
    assert after == before


def test_inconsistent_target_without_an_open_window_is_refused(
    server: MariaDb, target: TargetSection, nobody: str
) -> None:
    # Inconsistent, but no window of Binlake is open: a drainer's checkpoint, or one that was set back
    apply_window(target, Window(0, 200).manifest(), Window(0, 200))
    execute(server, f"UPDATE tidb_binlog.checkpoint SET checkPoint = '{HALF_WAY}'")
    with pytest.raises(CheckpointConflict, match="no window open there"):
        recover(replication(target, nobody), no_context)


def test_finished_window_below_the_exit_point_is_not_consistent(
    server: MariaDb, target: TargetSection, nobody: str, tmp_path: Path
) -> None:
    # DESIGN 3.8: windows up to 900 were started before; the open one ends below that
    own = replication(target, nobody, relay={"log-dir": str(tmp_path)})
    window = Window(0, 300).put((1, "a")).put((2, "b"))
    kill_apply(target, window, RelayLog.of(own))
    execute(server, "UPDATE tidb_binlog.binlake_progress SET exit_ts = 900")
    with pytest.raises(CheckpointConflict, match="rows of later windows may be on the target") as caught:
        recover(own, no_context)
    assert "900" in str(caught.value)


def test_unsupported_requests_are_refused(target: TargetSection, nobody: str, pd_url: str) -> None:
    with pytest.raises(ConfigError, match="no SQL target"):
        recover(replication(None, nobody), no_context)
    with pytest.raises(ConfigError, match="only the open window"):
        recover(replication(target, nobody), no_context, log_dir="/relay", roll_forward=True)
    another = replication(target, pd_url)
    another = another.model_copy(update={"source": another.source.model_copy(update={"cluster_id": "5"})})
    # The PD answers; an operator must fix that it belongs to another cluster.
    with pytest.raises(Permanent, match="another cluster"):
        recover(another, no_context)


class Forward:
    """A lake whose landed windows end at 300 and 400, and a sink that applies empty ones."""

    def __init__(self, target: TargetSection, pd: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lake, relay = {"path": str(folder / "lake")}, {"log-dir": str(folder)}
        safe = target.model_copy(update={"safe_mode": "never"})
        self.replication = replication(safe, pd, relay=relay).model_copy(
            update={"lake": LakeSection.model_validate(lake)}
        )
        log = WindowLog(LakePaths.of(self.replication))
        for lo, hi in ((200, 300), (300, 400)):
            for stage in ("land", "merge"):
                log.record(WindowEvent(stage, lo, hi, "done"))
        self.sinks: list[tuple[Bounds, Replication]] = []
        for room in (runner, restore):
            monkeypatch.setattr(room, "run_sink", self.sink)

    def sink(self, ctx: StageContext, _stages: object, bounds: Bounds) -> list[StageResult]:
        self.sinks.append((bounds, ctx.replication))
        assert ctx.replication.target is not None
        window = Window(bounds.lo, bounds.hi)
        apply_window(ctx.replication.target, window.manifest(), window)
        return [StageResult("finalize", "done", bounds.lo, bounds.hi, 0, 0.0, "", {})]

    def run(self) -> list[str]:
        make = lambda own: StageContext(own, "recover", no_spark)  # noqa: E731 - a name says nothing more
        return [result.state for result in recover(self.replication, make, roll_forward=True)]


def no_spark() -> Any:
    raise AssertionError("the sink is a stand-in")


@pytest.fixture
def forward(target: TargetSection, nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forward:
    return Forward(target, nobody, tmp_path, monkeypatch)


def test_roll_forward_interrupted_between_windows_resumes(target: TargetSection, forward: Forward) -> None:
    # S3-03, S3-08: with the configured modes and relay files, as any newly opened window
    assert forward.run() == ["nothing-to-do"]
    apply_window(target, Window(0, 300).manifest(), Window(0, 300))
    assert forward.run() == ["done", "recovered"]
    ((bounds, own),) = forward.sinks
    assert bounds == Bounds(300, 400)
    assert own == forward.replication
    assert forward.run() == ["nothing-to-do"]


def _apply_then_set_back(server: MariaDb, target: TargetSection, exit_ts: int) -> None:
    """Apply the window (0, 200], then make its checkpoint inconsistent; safe mode ends at `exit_ts`."""
    apply_window(target, Window(0, 200).manifest(), Window(0, 200))
    execute(
        server,
        f"UPDATE tidb_binlog.checkpoint SET checkPoint = '{HALF_WAY}'",
        f"UPDATE tidb_binlog.binlake_progress SET exit_ts = {exit_ts}",
    )


def test_roll_forward_over_possibly_applied_rows_forces_safe_mode(
    server: MariaDb, target: TargetSection, forward: Forward
) -> None:
    # S4-40: the checkpoint was set back
    _apply_then_set_back(server, target, exit_ts=400)
    assert forward.run() == ["done", "recovered"]
    ((bounds, own),) = forward.sinks
    assert bounds == Bounds(200, 400)
    assert own.target is not None
    assert (own.target.safe_mode, own.relay) == ("always", forward.replication.relay)


def test_roll_forward_that_ends_below_the_exit_point_reports_its_result(
    server: MariaDb, target: TargetSection, forward: Forward
) -> None:
    # DESIGN 3.8: the hint does not suggest the same command again
    _apply_then_set_back(server, target, exit_ts=900)
    with pytest.raises(
        CheckpointConflict, match="everything that has landed is applied, but rows of later windows"
    ) as caught:
        forward.run()
    assert "a newer copy" in caught.value.hint
    with pytest.raises(CheckpointConflict, match="nothing has landed above the checkpoint"):
        forward.run()


def test_restore_writes_no_relay_files(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3-15: the relay files belong to the sync DAG
    monkeypatch.setattr(restore, "read_target_position", lambda *_: SimpleNamespace(window=None, commit_ts=None))
    restore.restore(StageContext(forward.replication, "restore", no_spark), 300)
    ((_, own),) = forward.sinks
    assert own.relay.log_dir == ""


def test_checkpoint_and_open_window_are_read_in_one_snapshot(
    server: MariaDb, target: TargetSection, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S3-10: a finalize ends between the two reads
    kill_apply(target, Window(0, 300).put((1, "a")).put((2, "b")))
    read = recovering.read_progress

    def meanwhile(*arguments: Any) -> Any:
        found = read(*arguments)
        execute(server, f"UPDATE tidb_binlog.checkpoint SET checkPoint = '{CONSISTENT}'")
        return found

    monkeypatch.setattr(recovering, "read_progress", meanwhile)
    verdict = judge_recovery(replication(target, nobody))
    assert (verdict.state, verdict.commit_ts, verdict.window) == ("recover", 0, (0, 300))


def test_table_aside_needs_no_recovery_and_is_named(target: TargetSection, nobody: str) -> None:  # U-16, S3-10
    apply_window(target, (first := Window(100, 200).put((1, "a"))).manifest(), first)
    set_aside(target, CLUSTER, NAME, [("app", "t")], "by hand", 0)
    config = replication(target, nobody)
    verdict = judge_recovery(config)
    assert (verdict.state, verdict.commit_ts) == ("nothing-to-do", 200)
    assert verdict.reason.endswith("except for what is set aside: app.t")
    assert [result.state for result in recover(config, no_context)] == ["nothing-to-do"]

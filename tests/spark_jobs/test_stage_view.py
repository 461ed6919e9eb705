"""What a stage sees of the control tables: one version of them, its own writes, and after a lock or another server's
answer all that others have written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.jobhistory import in_version_order

from binlake.config import Replication
from binlake.lake import control, opentable
from binlake.lake.controltables import WINDOW
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.rows.schema import DdlJob, SchemaState
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.shared import nextwindow
from binlake.testkit.captures.capture import Capture

BANK = Path(__file__).parent.parent / "captures" / "bank"
TARGET = {"db-type": "mariadb", "host": "127.0.0.1", "port": 1, "user": "root"}


def _refuse_spark() -> Any:
    raise AssertionError("no stage runs here")


def _open(folder: Path) -> tuple[StageContext, WindowLog]:
    """A stage's context whose log was read, and the log of another process."""
    raw = {"name": "r", "lake": {"path": str(folder)}, "target": TARGET}
    ctx = StageContext(Replication.model_validate(raw), "own", _refuse_spark)
    other = WindowLog(ctx.paths)
    other.record(WindowEvent("land", 0, 1, "done"))
    stage = ctx.begin_stage("compact", Bounds(0, 1))
    assert _his(stage) == [1]
    return stage, other


def _his(ctx: StageContext) -> list[int]:
    return [event["hi"] for event in ctx.windows.read_events(stage="land")]


def test_a_stage_sees_what_others_write_only_when_it_looks_again(tmp_path: Path) -> None:
    stage, other = _open(tmp_path)
    other.record(WindowEvent("land", 1, 2, "done"))
    assert _his(stage) == [1]
    with stage.hold_lock("sql"):
        assert _his(stage) == [1, 2]
    other.record(WindowEvent("land", 2, 3, "done"))
    assert _his(stage) == [1, 2]
    stage.refresh()
    assert _his(stage) == [1, 2, 3]


def test_a_stage_sees_its_own_writes(tmp_path: Path) -> None:
    stage, _ = _open(tmp_path)
    stage.windows.record(WindowEvent("land", 1, 2, "done"))
    assert _his(stage) == [1, 2]


def test_the_lake_is_read_again_after_the_target_has_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # another run may have sealed the window that the target holds open.
    stage, other = _open(tmp_path)
    monkeypatch.setattr(nextwindow, "read_cluster_id", lambda *_: 7)

    def answer(*_: object) -> None:
        other.record(WindowEvent("land", 1, 2, "done"))

    monkeypatch.setattr(nextwindow, "_read_own_position", answer)
    nextwindow.read_target_position(stage, Bounds(0, 1))
    assert _his(stage) == [1, 2]


def test_the_next_stage_of_a_chain_sees_what_others_have_written_meanwhile(tmp_path: Path) -> None:
    stage, other = _open(tmp_path)
    chain = StageContext(stage.replication, "own", _refuse_spark).begin_chain()
    first = chain.begin_stage("compact")
    assert _his(first) == [1]
    other.record(WindowEvent("land", 1, 2, "done"))
    assert _his(first) == [1]
    first.windows.record(WindowEvent("land", 2, 3, "done"))
    assert _his(first) == [1, 2, 3]
    other.record(WindowEvent("land", 3, 4, "done"))
    assert _his(chain.begin_stage("convert")) == [1, 2, 3, 4]


def test_a_look_without_a_newer_commit_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, other = _open(tmp_path)
    stage.windows.record(WindowEvent("land", 1, 2, "done"))
    assert _his(stage) == [1, 2]
    opened: list[str] = []

    def open_known(path: str) -> opentable.KnownTable:
        opened.append(path)
        return opentable.open_known(path)

    monkeypatch.setattr(control, "open_known", open_known)
    stage.refresh()
    assert (_his(stage), opened) == ([1, 2], [])
    # The events are appended to the version that was read, which need not be the newest.
    other.record(WindowEvent("land", 2, 3, "done"))
    opened.clear()
    stage.windows.record(WindowEvent("land", 3, 4, "done"))
    assert (sorted(_his(stage)), opened) == ([1, 2, 3, 4], [])
    other.record(WindowEvent("land", 4, 5, "done"))
    opened.clear()
    stage.refresh()
    assert (sorted(_his(stage)), len(opened)) == ([1, 2, 3, 4, 5], 1)


def test_a_table_that_took_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    # The new log has a file of the same version.
    stage, _ = _open(tmp_path)
    shutil.rmtree(stage.paths.locate_table(WINDOW.name))
    WindowLog(stage.paths).record(WindowEvent("land", 7, 9, "done"))
    stage.refresh()
    assert _his(stage) == [9]


def test_a_context_outside_a_stage_always_sees_the_newest_rows(tmp_path: Path) -> None:
    stage, other = _open(tmp_path)
    ctx = StageContext(stage.replication, "own", _refuse_spark)
    assert _his(ctx) == [1]
    other.record(WindowEvent("land", 1, 2, "done"))
    assert _his(ctx) == [1, 2]


def test_a_state_of_the_schema_is_computed_again_after_a_write_and_a_look(tmp_path: Path) -> None:
    jobs = [(job.finished_ts, job) for job in in_version_order(map(DdlJob.from_dict, Capture(BANK).read_jobs()))]
    first, second, end = jobs[:9], jobs[9:20], jobs[-1][0]
    paths = LakePaths(str(tmp_path))
    own, other = SchemaHistory(paths, pinned=True), SchemaHistory(paths)
    own.begin(0, SchemaState())
    own.append(first[-1][0], first)
    state = own.read_state_at(end)
    assert state.version == first[-1][1].schema_version
    assert own.read_state_at(end) is state
    own.append(second[-1][0], second)
    assert own.read_state_at(end).version == second[-1][1].schema_version
    other.append(end, jobs[20:])
    assert own.read_state_at(end).version == second[-1][1].schema_version
    own.refresh()
    state = own.read_state_at(end)
    assert state.version == jobs[-1][1].schema_version
    # Without a job between two positions, the state is the same; with one it is not.
    assert own.read_state_at(end + 5) is state
    assert [own.read_state_at(ts).version for ts, _ in jobs] == [job.schema_version for _, job in jobs]

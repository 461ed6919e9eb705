"""Mirrors follow DML and DDL exactly, a rerun changes nothing, and every commit_ts between versions can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from history import History, plain, shop
from lakehouse import Lakehouse, Source
from mirrored import Mirrored, power_cut
from pyspark.sql import SparkSession

from binlake.audit.audit import Audit
from binlake.cli import run as main
from binlake.errors import IncompleteWindow, LostRange, SchemaError
from binlake.mirror import MirrorVersions, plan_mirrors
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.stages import mirror

pytestmark = pytest.mark.spark


def _model(history: History, ts: int) -> dict[tuple[str, str], Any]:
    state = [tables for commit_ts, tables in history.states if commit_ts <= ts][-1]
    return {name: plain(rows) for name, rows in state.items()}


def test_mirrors_equal_the_model_after_each_window(mirrored: Mirrored) -> None:
    # The second window was applied, died before its record, and was applied again: keyless rows are not duplicated.
    for bounds, found in zip(mirrored.windows, mirrored.after, strict=True):
        assert found == _model(mirrored.history, bounds.hi)


def test_ddl_on_other_tables_creates_no_mirror_version(mirrored: Mirrored) -> None:
    # the second window has six DDL; `item` has one of its own, plus the window's end.
    window = mirrored.windows[1]
    versions = [
        v for v in MirrorVersions(mirrored.ctx.paths).read_versions("shop", "item") if window.lo < v.hi <= window.hi
    ]
    assert len({version.hi for version in versions}) == 2


def test_old_windows_cannot_regress_a_mirror(mirrored: Mirrored) -> None:
    #
    states = [mirror.run(mirrored.ctx, bounds).state for bounds in mirrored.windows]
    assert states == ["already"] * 4
    assert mirrored.tables() == mirrored.after[-1]


def test_mirror_is_typed_and_keeps_dropped_data(mirrored: Mirrored) -> None:
    latest = MirrorVersions(mirrored.ctx.paths).read_latest()
    item = DeltaTable(mirrored.ctx.paths.locate_mirror("shop", "item"))
    types = {field.name: str(field.type) for field in item.schema().fields}
    assert "double" in types["price"]
    assert "integer" in types["stock"]
    gone = latest["shop", "gone"]
    assert gone.dropped
    kept = DeltaTable(mirrored.ctx.paths.locate_mirror("shop", "gone"), version=gone.delta_version)
    assert kept.to_pyarrow_dataset().count_rows() == 1


def test_spark_reads_a_mirror(mirrored: Mirrored, spark: SparkSession) -> None:
    rows = spark.read.format("delta").load(mirrored.ctx.paths.locate_mirror("shop", "item"))
    assert rows.count() == len(mirrored.history.workload.rows["shop", "item"])


def test_table_as_of_every_commit_equals_the_model(mirrored: Mirrored) -> None:
    # C-07, R-33: commits strictly inside a window, at its ends, and between its DDL
    audit = Audit(mirrored.ctx.paths)
    for ts, tables in mirrored.history.states[1::3]:
        for (db, name), rows in tables.items():
            found = audit.read_table_as_of(db, name, ts)
            assert plain(list(found.rows)) == plain(rows), (ts, name)


def test_history_of_a_row_follows_its_key(mirrored: Mirrored) -> None:
    # C-07: the moved row's change is in the history of both keys.
    audit = Audit(mirrored.ctx.paths)
    old, new = audit.read_row_history("shop", "item", ["4"]), audit.read_row_history("shop", "item", ["4000"])
    assert [change.op for change in old] == ["insert", "update"]
    assert old[-1] == new[0]
    assert new[0].before is not None
    assert new[0].after is not None
    assert (new[0].before["id"], new[0].after["id"]) == ("4", "4000")
    assert audit.read_row_history("shop", "item", ["4"], after=old[0].commit_ts) == old[1:]


def test_audits_of_unknown_tables_and_times_are_refused(mirrored: Mirrored) -> None:
    audit = Audit(mirrored.ctx.paths)
    end = mirrored.windows[-1].hi
    with pytest.raises(LostRange, match="ends at"):
        audit.read_table_as_of("shop", "item", end + 1)
    with pytest.raises(SchemaError, match="the table did not exist"):
        audit.read_table_as_of("shop", "gone", end)
    with pytest.raises(SchemaError, match="does not know"):
        audit.read_row_history("shop", "nobody", ["1"])


def test_command_answers_in_json(mirrored: Mirrored, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(f'name = "demo"\n[lake]\npath = "{mirrored.lakehouse.root}"\n')
    assert main(["audit", "row", "shop.item", "4000", "--replication", str(file), "--output", "json"]) == 0
    [change] = json.loads(capsys.readouterr().out)
    assert isinstance(change["commit_ts"], str)
    ts = change["commit_ts"]
    arguments = ["audit", "table", "shop.item", "--as-of", ts, "--replication", str(file), "--output", "json"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["as_of"] == ts
    assert ["4000", "item 4", "4.5", "1"] in answer["rows"]
    assert main(["audit", "row", "shop", "1", "--replication", str(file)]) == 1
    assert "does not name a table" in capsys.readouterr().err


def test_unmerged_window_stops_the_sink(mirrored: Mirrored) -> None:
    end = mirrored.windows[-1].hi
    with pytest.raises(IncompleteWindow, match="not completely landed and merged"):
        mirror.run(mirrored.ctx, Bounds(end, end + 10))


def _lose_done_event(record: Any) -> Any:
    def recorded(log: Any, event: Any) -> None:
        if event.state == "done":
            power_cut()
        record(log, event)

    return recorded


def _plan_and_record(known: list[tuple[int, int]]) -> Any:
    def planned(lo: int, *given: Any) -> Any:
        known.extend((lo, version.hi) for version in given[-1].values())
        return plan_mirrors(lo, *given)

    return planned


def test_started_window_is_finished_with_its_own_bounds_before_a_wider_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `log` has no key; the run dies after its table and before the window's record, then two windows are due.
    history = shop()
    lakehouse = Lakehouse(spark, tmp_path, Source.of_workload(history.workload))
    ctx, ends = lakehouse.context(), [history.states[20][0], history.states[30][0]]
    lakehouse.land(0, ends[0])
    with monkeypatch.context() as patch:
        patch.setattr(MirrorVersions, "record", power_cut)
        with pytest.raises(ConnectionAbortedError):
            mirror.run(ctx, Bounds(0, ends[0]))
    # another run dies right after that record, which says what the window made, not what it found.
    known: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(type(ctx.windows), "record", _lose_done_event(type(ctx.windows).record))
        with pytest.raises(ConnectionAbortedError):
            mirror.run(ctx, Bounds(0, ends[0]))
    monkeypatch.setattr(mirror, "plan_mirrors", _plan_and_record(known))
    lakehouse.land(*ends)
    result = mirror.run(ctx, Bounds(*ends))
    assert {lo for lo, _ in known} == {ends[0]}
    assert all(hi <= lo for lo, hi in known)
    assert (result.state, result.lo, result.hi) == ("done", 0, ends[1])
    [wanted] = [tables["shop", "log"] for ts, tables in history.states if ts == ends[1]]
    kept = DeltaTable(ctx.paths.locate_mirror("shop", "log")).to_pyarrow_table()
    assert sorted(zip(kept["what"].to_pylist(), map(str, kept["n"].to_pylist()), strict=True)) == sorted(
        (row["what"], row["n"]) for row in wanted
    )
    events = [(e["lo"], e["hi"]) for e in ctx.windows.read_events(stage="mirror") if e["state"] == "done"]
    assert events == [(0, ends[0]), tuple(ends)]

"""Audits: a row across key changes, a transaction, a table as of a time; in Python and in Spark SQL."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from deltalake import DeltaTable
from history import plain
from mirrored import Mirrored
from pyspark.sql import SparkSession

from binlake import tso
from binlake.audit.audit import Audit
from binlake.cli import run as main
from binlake.config import Replication
from binlake.errors import ConfigError, LostRange
from binlake.feed.sealed import read_sealed
from binlake.feed.state import FeedState, list_waiting_windows
from binlake.feed.upkeep import tidy_feed
from binlake.lake.controltables import CONTROL_TABLES
from binlake.lake.mutations import read_touched_tables
from binlake.lake.paths import LakePaths
from binlake.lake.tables import STAGE_TABLES
from binlake.lake.windowlog import WindowEvent
from binlake.mirror import MirrorVersions
from binlake.pipeline import name_feed_sink
from binlake.spark_jobs.commands import maintain
from binlake.spark_jobs.commands.views import register, render_table_query
from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.shared.sinks import read_window_changes
from binlake.spark_jobs.stages import encode

pytestmark = pytest.mark.spark

Life = list[tuple[str, str | None, str | None]]


@pytest.fixture
def audit(mirrored: Mirrored) -> Audit:
    return Audit(mirrored.ctx.paths)


def list_changes(audit: Audit, *key: str, follow: bool = True) -> Life:
    """(op, n before, n after) of the changes of the row of `pair` with that key."""
    found = (audit.read_row_history_across_keys if follow else audit.read_row_history)("shop", "pair", list(key))
    return [(c.op, (c.before or {}).get("n"), (c.after or {}).get("n")) for c in found]


FIRST: Life = [("insert", None, "1"), ("update", "1", "2"), ("update", "2", "3"), ("delete", "3", None)]


def test_row_is_followed_across_key_changes(audit: Audit) -> None:  # C-07
    assert list_changes(audit, "3", "AB01", follow=False) == FIRST[2:]
    assert list_changes(audit, "3", "AB01") == FIRST
    assert list_changes(audit, "2", "AB01") == FIRST
    # Another row took the key that this row left, so the key's history shows both.
    assert list_changes(audit, "1", "AB01") == [*FIRST[:3], ("insert", None, "1"), *FIRST[3:]]


def test_binary_keys_are_found_in_any_notation(audit: Audit) -> None:
    assert list_changes(audit, "2", "0xab01") == list_changes(audit, "2", "AB01")
    assert list_changes(audit, "2", "AB02") == []
    with pytest.raises(ConfigError, match=r"the key has 1 values, but rows are identified by \(n, code\)"):
        list_changes(audit, "2")


def test_keyless_row_is_identified_by_all_its_columns(audit: Audit) -> None:
    log = audit.read_row_history("shop", "log", ["x1"])
    assert [(c.op, c.after) for c in log] == [("insert", {"what": "x1"})] * 5


def test_transaction_is_found_by_commit_ts_and_start_ts_with_its_sinks(mirrored: Mirrored, audit: Audit) -> None:
    moved = audit.read_row_history("shop", "item", ["4000"])[0]
    found = audit.find_transaction(moved.commit_ts)
    assert found is not None
    assert found == audit.find_transaction(moved.start_ts)
    assert [(c.seq, c.table, c.op, c.key, c.new_key) for c in found.changes] == [
        (0, "item", "update", '["4"]', '["4000"]'),
        (1, "log", "insert", '["move","4"]', None),
    ]
    assert found.pumps == ("pump-1",)
    second = mirrored.windows[1]
    taken = {(p.stage, p.lo, p.hi, p.run_id) for p in found.passages}
    assert taken == {("land", second.lo, second.hi, ""), ("merge", second.lo, second.hi, "test"),
                     ("mirror", second.lo, second.hi, "test")}  # fmt: skip
    ddl = next(b for b in mirrored.history.workload.logged if b.commit_ts and b.ddl_query.startswith(b"ALTER"))
    shown = audit.find_transaction(ddl.commit_ts)
    assert shown is not None
    assert [(d.decision, d.sql) for d in shown.ddls] == [("apply", ddl.ddl_query.decode())]
    assert audit.find_transaction(moved.commit_ts + 1) is None


def test_questions_beyond_the_lake_report_what_it_holds(audit: Audit) -> None:
    #
    first, last = audit.read_merged_range()
    with pytest.raises(LostRange, match=f"the lake ends at {last} \\(20"):
        audit.read_row_history("shop", "item", ["3"], upto=last + 1)
    with pytest.raises(LostRange, match=f"the lake starts at {first} \\("):
        audit.read_table_as_of("shop", "item", first - 1)


@pytest.fixture
def ask(mirrored: Mirrored, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Runs `binlake audit`; returns (status, JSON answer or stderr)."""
    file = tmp_path / "demo.toml"
    file.write_text(f'name = "demo"\n[lake]\npath = "{mirrored.lakehouse.root}"\n')

    def run(*words: str) -> tuple[int, Any]:
        status = main(["audit", *words, "--replication", str(file), "--output", "json"])
        told = capsys.readouterr()
        return status, json.loads(told.out) if told.out else told.err

    return run


def test_command_prints_answers_and_its_status_reports_failures(mirrored: Mirrored, ask: Any) -> None:
    status, [change] = ask("row", "shop.item", "4000")
    assert status == 0
    assert change["window"] == mirrored.windows[1].window
    assert [p["stage"] for p in change["passages"]] == ["land", "merge", "mirror"]
    status, found = ask("transaction", change["start_ts"])
    assert (status, found["commit_ts"], found["changes"][0]["new_key"]) == (0, change["commit_ts"], '["4000"]')
    assert isinstance(found["start_ts"], str)  # DESIGN 3.12
    assert ask("row", "shop.item", "777")[0] == 3
    assert ask("transaction", "470000000000000000")[0] == 3
    status, followed = ask("row", "shop.pair", '["3","AB01"]', "--follow")
    assert (status, len(followed)) == (0, 4)


def test_times_in_any_zone_select_the_same_state(mirrored: Mirrored, ask: Any) -> None:
    commit_ts = mirrored.history.states[45][0]
    utc = tso.to_datetime(commit_ts)
    other = utc.astimezone(ZoneInfo("Asia/Tokyo"))
    answers = [ask("table", "shop.item", "--at", text)[1] for text in (utc.isoformat(), other.isoformat())]
    assert answers[0] == answers[1]
    assert answers[0]["rows"] == ask("table", "shop.item", "--as-of", str(commit_ts))[1]["rows"]


def test_spark_sql_gives_the_same_answers(mirrored: Mirrored, audit: Audit, spark: SparkSession) -> None:
    register(spark, mirrored.ctx.paths)
    moved = audit.read_row_history("shop", "item", ["4000"])[0]
    key = '["4"]'
    rows = spark.sql(
        f"SELECT op, after['id'] AS id FROM binlake_change WHERE db = 'shop' AND `table` = 'item' "
        f"AND (key = '{key}' OR new_key = '{key}') ORDER BY commit_ts, start_ts, seq"
    ).collect()
    assert [tuple(row) for row in rows] == [("insert", "4"), ("update", "4000")]
    [row] = spark.sql(f"SELECT * FROM binlake_transaction WHERE start_ts = {moved.start_ts}").collect()
    assert (row.commit_ts, row.kind, row.pumps) == (moved.commit_ts, "dml", ["pump-1"])
    taken = spark.sql(f"SELECT stage FROM binlake_passage WHERE lo < {moved.commit_ts} AND hi >= {moved.commit_ts} "
                      "ORDER BY at").collect()  # fmt: skip
    assert [row.stage for row in taken] == ["land", "merge", "mirror"]
    for ts in (mirrored.history.states[20][0], mirrored.windows[-1].hi):
        found = spark.sql(render_table_query(mirrored.ctx.paths, "shop", "item", ts)).collect()
        wanted = audit.read_table_as_of("shop", "item", ts).rows
        assert sorted(_texts(row.asDict()) for row in found) == sorted(_texts(row) for row in wanted)
    with pytest.raises(ConfigError, match="without a key"):
        render_table_query(mirrored.ctx.paths, "shop", "log")


def _texts(row: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((name, str(float(value) if name == "price" else value)) for name, value in row.items())


def test_every_table_has_comments_on_its_contents(mirrored: Mirrored) -> None:
    for table in (*STAGE_TABLES, *CONTROL_TABLES):
        place = mirrored.ctx.paths.locate_table(table.name)
        if not DeltaTable.is_deltatable(place):
            continue
        assert {c.name: c.comment for c in table.columns}.items() <= _comments(place).items()
        told = DeltaTable(place).metadata()
        assert told.description == table.comment
        assert told.configuration["delta.deletedFileRetentionDuration"] == f"interval {table.kept_days} days"
    mirror = mirrored.ctx.paths.locate_mirror("shop", "item")
    assert _comments(mirror)["_commit_ts"] == "commit_ts of the last change of the row"
    kept = DeltaTable(mirror).metadata().configuration
    assert kept["delta.deletedFileRetentionDuration"] == "interval 400 days"


def _comments(place: str) -> dict[str, Any]:
    """Column comments from the table's log; Spark's DESCRIBE shows the same."""
    return {field.name: field.metadata.get("comment") for field in DeltaTable(place).schema().fields}


def test_touched_tables_are_those_of_the_rows_in_their_segments(mirrored: Mirrored) -> None:
    window, starts = mirrored.windows[1], [mirrored.history.states[n][0] for n in (44, 48)]
    changes = read_window_changes(mirrored.ctx, LocalEngine(), window, 1)
    assert changes is not None
    found = changes.find_touched(starts)
    assert found == read_touched_tables(mirrored.ctx.paths, window.lo, window.hi, starts)
    assert len({place.segment for place in found}) == 3


_TIMES = re.compile(r'("(?:deletionTimestamp|modificationTime|timestamp|inCommitTimestamp)"\s*:\s*)(\d{13})')


class Copy:
    """A copy of the lake whose mirrors keep `days` days, changed as if everything had been written `age` days ago."""

    def __init__(self, mirrored: Mirrored, root: Path, days: int, age: int) -> None:
        shutil.copytree(mirrored.lakehouse.root, root)
        for checksum in root.rglob(".*.crc"):
            checksum.unlink()
        for log in root.rglob("_delta_log/*.json"):
            text = log.read_text()
            if "/mirror/" in str(log):
                text = text.replace("interval 400 days", f"interval {days} days")
            log.write_text(_TIMES.sub(lambda m: f"{m[1]}{int(m[2]) - age * 86_400_000}", text))
        feed = {
            "name": "f",
            "sink-uri": "kafka://k:1/t?protocol=avro",
            "schema-registry": "http://r",
            "rules": ["*.item"],
        }
        raw = {"name": "demo", "lake": {"path": str(root), "retention-days": days}, "feed": [feed]}
        self.ctx = StageContext(Replication.model_validate(raw), "test", lambda: mirrored.lakehouse.spark)
        for file in root.rglob("*"):
            os.utime(file, (time.time() - age * 86400,) * 2)


def _answers(paths: LakePaths, history: Any, names: Sequence[tuple[str, str]]) -> list[Any]:
    audit = Audit(paths)
    states = history.states[1::7]
    return [
        plain(list(audit.read_table_as_of(*name, ts).rows)) for ts, tables in states for name in names if name in tables
    ]


@pytest.mark.soak
def test_maintenance_days_later_does_not_change_audits(
    mirrored: Mirrored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # U-21, C-07, R-26, R-33: eight days have passed, and every file that may be deleted is deleted.
    copy = Copy(mirrored, tmp_path / "lake", days=400, age=8)
    sealed = encode.run(copy.ctx, Bounds(0, mirrored.windows[-1].hi), "f")
    names, paths = [("shop", "item"), ("shop", "log")], copy.ctx.paths
    before = _answers(paths, mirrored.history, names)
    moved = Audit(paths).read_row_history("shop", "item", ["4000"])
    # Pretend that windows ran for eight more days, so that all of these are closed.
    later = tso.compose(tso.extract_physical(mirrored.windows[-1].hi) + 8 * 86_400_000)
    monkeypatch.setattr(type(copy.ctx.windows), "find_landed_range", lambda _: (0, later))
    done = {one.table: one for one in maintain.maintain(copy.ctx)}
    monkeypatch.undo()
    assert done["mutation"].joined >= 4
    assert done["window"].joined > 0
    assert done["mirror"].dropped == 0
    assert _answers(paths, mirrored.history, names) == before
    assert Audit(paths).read_row_history("shop", "item", ["4000"]) == moved
    # A stopped feed still has to send its messages; once it has sent them, they are deleted.
    (manifest,) = list_waiting_windows(copy.ctx.windows, copy.ctx.replication.feed[0], FeedState(), later)
    assert sum(part.num_rows for part in read_sealed(paths, manifest, None)) == sealed.rows > 0
    assert (done["feed/f"].windows, tidy_feed(paths, copy.ctx.windows, "f", later).windows) == (0, 0)
    copy.ctx.windows.record(WindowEvent("publish", manifest.lo, manifest.hi, "done", sink=name_feed_sink("f")))
    assert tidy_feed(paths, copy.ctx.windows, "f", later).windows == 1


def test_audit_below_the_retention_reports_the_earliest_time(mirrored: Mirrored, tmp_path: Path) -> None:
    #
    copy = Copy(mirrored, tmp_path / "lake", days=1, age=8)
    upkeep = maintain._maintain_mirrors(copy.ctx)
    assert upkeep.dropped > 0
    assert ("shop", "item") in upkeep.mirrors
    versions = MirrorVersions(copy.ctx.paths).read_versions("shop", "item")
    with pytest.raises(LostRange, match=f"states of this table are available from {versions[-1].hi} "):
        Audit(copy.ctx.paths).read_table_as_of("shop", "item", mirrored.windows[0].hi)
    assert Audit(copy.ctx.paths).read_table_as_of("shop", "item", versions[-1].hi).rows

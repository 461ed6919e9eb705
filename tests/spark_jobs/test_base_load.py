"""Parts of a full load by SQL: ranges and their commit_ts, errors of the server, and an interrupted sealing."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pymysql import err
from support.tabledefs import col, primary, table

from binlake.cli import run
from binlake.common.rowhash import Fold
from binlake.config import Replication
from binlake.errors import ConfigError, LostRange, Permanent, SourceRefused, SourceUnavailable
from binlake.lake.baseload import BaseLoad, BaseTable, LoadedRange
from binlake.lake.parts import write_parts
from binlake.lake.tables import BINLOG
from binlake.spark_jobs.bootstrap import loading
from binlake.spark_jobs.bootstrap.loading import BootstrapLoader, Sealer
from binlake.spark_jobs.bootstrap.reading import WHOLE_ROOM, BootstrapRanges, build_binlog_table
from binlake.spark_jobs.bootstrap.source import BootstrapTable, SnapshotSource
from binlake.spark_jobs.commands import bootstrap
from binlake.spark_jobs.commands.bootstrap import Bootstrap
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.lake import commit_parts, ensure_tables
from binlake.spark_jobs.land.binlogfiles import measure_landed
from binlake.spark_jobs.stages import land
from deploy.local.ports import free_port

NO_ROWS = Fold(0, 0, 0)
BASE = 470_614_289_491_165_184
LOAD = BaseLoad(BASE - (1 << 36), BASE, 40, 10, 2, 100)
KEYED = BootstrapTable(table("t", col("id"), keys=(primary("id"),), pk_is_handle=False, id=1), "", 50)
KEYLESS = BootstrapTable(table("log", col("n"), id=2), "", 7)


class Server:
    """Answers the queries for bounds from a list."""

    def __init__(self, *bounds: str) -> None:
        self.left = list(bounds)

    def cursor(self) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def execute(self, query: str, _: object) -> None:
        assert "LIMIT 9, 1" in query

    def fetchall(self) -> list[tuple[str]]:
        return [(self.left.pop(0),)] if self.left else []


def ranges(load: BaseLoad = LOAD, known: tuple[LoadedRange, ...] = ()) -> BootstrapRanges:
    return BootstrapRanges(load, [KEYLESS, KEYED], load.from_ts + 3, known, "")


def build_chunk(found: Any, parts: tuple[Any, ...] = (), size: int = 0, fold: Fold = NO_ROWS) -> LoadedRange:
    definition = found.table.definition
    return LoadedRange(
        definition.id, "d", definition.name, found.low, found.high, found.first_ts, found.last_ts, 5,
        1 if parts else 0, size, fold, parts,
    )  # fmt: skip


def test_ranges_get_distinct_commit_ts_in_the_order_of_assignment() -> None:  # S4-24
    link, given = cast(Any, Server("10", "20")), ranges()
    found = [cast(Any, given.take(link)) for _ in range(4)]
    assert given.take(link) is None
    assert [(one.table.name[1], one.low, one.high) for one in found] == [
        ("t", "", "10"), ("t", "10", "20"), ("t", "20", ""), ("log", "", "")
    ]  # fmt: skip
    assert found[0].first_ts == LOAD.from_ts + 3
    assert [one.last_ts - one.first_ts + 1 for one in found] == [10, 10, 10, WHOLE_ROOM]
    assert all(b.first_ts == a.last_ts + 1 for a, b in itertools.pairwise(found))
    # Everything below the first range that is still being read is complete, in whatever order the others end.
    given.end(found[1])
    assert given.complete_below() == found[0].first_ts
    given.end(found[0])
    assert given.complete_below() == found[2].first_ts
    given.end(found[3])
    given.end(found[2])
    assert given.complete_below() == found[3].last_ts + 1
    assert given.tables_read == 2


def test_recorded_ranges_are_not_assigned_again() -> None:  # S4-24
    before = ranges()
    link = cast(Any, Server("10", "20"))
    first, second, third = (cast(Any, before.take(link)) for _ in range(3))
    known = (build_chunk(first), build_chunk(third))
    again = ranges(known=known)
    missing = cast(Any, again.take(cast(Any, Server("20"))))
    assert (missing.low, missing.high) == ("10", "20")
    # Above all recorded ranges: commit_ts that the lost attempt had assigned are not reused.
    assert missing.first_ts == third.last_ts + 1
    assert second.first_ts < missing.first_ts
    rest = cast(Any, again.take(cast(Any, Server())))
    assert rest.table.name == KEYLESS.name
    assert again.take(cast(Any, Server())) is None


def test_more_ranges_than_free_commit_ts_are_refused() -> None:
    given = ranges(replace(LOAD, base_ts=LOAD.from_ts + 20))
    given.take(cast(Any, Server("10")))
    with pytest.raises(Permanent, match=r"more ranges than the commit_ts.*chunk-rows"):
        given.take(cast(Any, Server("20")))


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (1193, SourceRefused, "it is not a TiDB"),
        (8055, LostRange, "tidb_gc_life_time"),
        (9006, LostRange, "tidb_gc_life_time"),
        (1142, SourceRefused, "needs SELECT"),
        (2013, SourceUnavailable, "interrupted the load"),
    ],
)
def test_server_errors_are_reported_by_name(
    code: int, kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # S4-24
    def refuse(*_: object, **__: object) -> None:
        raise err.OperationalError(code, "no")

    monkeypatch.setattr("binlake.spark_jobs.bootstrap.source.SqlLink", refuse)
    raw = {"name": "a", "lake": {"path": "/l"}, "source": {"sql": {"host": "h"}}}
    with pytest.raises(kind, match=says), SnapshotSource.of(Replication.model_validate(raw), 7).open_session():
        raise AssertionError("there is no session")


@pytest.mark.parametrize(("at_ts", "kept_from"), [(None, 900), (400, 400)])
def test_pumps_are_told_to_keep_later_binlogs_before_anything_is_read(
    at_ts: int | None, kept_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # S4-24
    published: list[int] = []

    def opened(*_: object) -> object:
        raise SourceUnavailable("the load goes no further here")

    registry = SimpleNamespace(publish_drainer=lambda _name, ts: published.append(ts), find_drainer=lambda _: None)
    cluster = nullcontext(SimpleNamespace(registry=registry, pd=SimpleNamespace(fetch_ts=lambda: 900)))
    monkeypatch.setattr(loading, "open_cluster", lambda _: cluster)
    monkeypatch.setattr(BootstrapLoader, "_require_new", lambda *_: None)
    monkeypatch.setattr(BootstrapLoader, "_open_load", opened)
    raw = {"name": "a", "lake": {"path": str(tmp_path)}, "source": {"sql": {"host": "h"}}}
    ctx = StageContext(Replication.model_validate(raw), "run", lambda: pytest.fail("no Spark is needed"))
    with pytest.raises(SourceUnavailable, match="no further"):
        BootstrapLoader(ctx, lambda _: None).load(at_ts)
    assert published == [kept_from]


def test_source_without_sql_names_the_missing_section() -> None:
    with pytest.raises(ConfigError, match=r"add a section \[source.sql\]"):
        SnapshotSource.of(Replication.model_validate({"name": "a", "lake": {"path": "/l"}}), 7)


def test_interrupted_seal_is_repeated_without_duplicate_files(tmp_path: Path) -> None:  # S4-24 R-03
    raw = {"name": "a", "lake": {"path": str(tmp_path)}, "window": {"max-bytes": 1}}
    ctx = StageContext(Replication.model_validate(raw), "test", lambda: cast(Any, None))
    ensure_tables(ctx.paths)
    given = ranges()
    link = cast(Any, Server("10"))
    found = [cast(Any, given.take(link)) for _ in range(3)]
    chunks = []
    for one in found:
        rows = build_binlog_table([(one.first_ts, 0, b"payload")], "dml", 40)
        parts = tuple(write_parts(ctx.paths.locate_table(BINLOG.name), BINLOG, [rows]))
        chunks.append(build_chunk(one, parts, 7, measure_landed(rows).fold))
    notes = BaseTable(ctx.paths)
    notes.add(chunks)
    assert notes.read_chunks() == chunks
    assert notes.count_rows_read() == 15
    commit_parts(ctx.paths, BINLOG, chunks[0].parts, [], {"window": "died"})
    sealed: list[Bounds] = []
    sealer = Sealer(ctx, 7, LOAD, sealed.append)
    sealer.add(chunks[1:], found[0].first_ts)
    assert sealed == []
    sealer.add(chunks[:1], found[2].first_ts)
    sealer.finish()
    assert [(one.lo, one.hi) for one in sealed] == [
        (LOAD.from_ts, found[0].last_ts), (found[0].last_ts, found[1].last_ts), (found[1].last_ts, LOAD.base_ts)
    ]  # fmt: skip
    for bounds in sealed:
        assert land.run(ctx, bounds).rows == 1
    sealer.finish()
    assert len(sealed) == 3


def test_bootstrap_loads_by_sql_without_a_feeder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # S4-24
    asked: list[tuple[str, int | None]] = []

    def load(_ctx: StageContext, until: str, _show: object, at_ts: int | None) -> Bootstrap:
        asked.append((until, at_ts))
        return Bootstrap(until, (bootstrap._load_of(replace(LOAD, done=True), 7, 2),), BASE, None)

    monkeypatch.setattr(bootstrap, "load_tidb", load)
    file = tmp_path / "a.toml"
    head = f'name = "a"\n[lake]\npath = "{tmp_path}"\n[source]\nstatus-url = "http://127.0.0.1:{free_port()}"\n'
    file.write_text(f'{head}[source.sql]\nhost = "h"\n')
    words = ["bootstrap", "--replication", str(file), "--output", "json", "--at", str(BASE)]
    assert run(words) == 0
    assert asked == [("landed", BASE)]
    shown = json.loads(capsys.readouterr().out)
    assert (shown["phase"], shown["loads"][0]["commit_ts"], shown["loads"][0]["rows"]) == ("landed", str(BASE), 7)
    # Without [source.sql] the command follows a feeder, which accepts no timestamp.
    file.write_text(head)
    assert run(words) == 1
    assert "--at is only for a TiDB source" in capsys.readouterr().err

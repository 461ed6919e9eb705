"""Statements that convert hands to finalize in one process equal those of the lake, and are used only if pinned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.netchanges import TABLES, WINDOW, changes, definitions

from binlake.config import Replication
from binlake.ddl.definitions import LandedDdl, Segments, SegmentTable
from binlake.errors import ImmutableWindow
from binlake.lake.paths import LakePaths
from binlake.lake.tables import STATEMENT
from binlake.rows.schema.state import DdlSide
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.shared import statements as statement_module
from binlake.spark_jobs.shared.render import Renderer
from binlake.spark_jobs.shared.sinks import SinkWindow
from binlake.spark_jobs.shared.sqlwindow import Compacted, Converted
from binlake.spark_jobs.shared.statements import LakeStatements, RenderedBatch, build_statement_table
from binlake.spark_jobs.stages import finalize
from binlake.statements import BatchLimits, Phase
from binlake.statements.batch import StatementBatch, compute_statement_digest
from binlake.window.manifest import ApplyManifest

BOUNDS = Bounds(1, 9)
NOTHING = DdlSide((), ())
LIMITS = BatchLimits(rows=5)


def render() -> list[StatementBatch]:
    renderer = Renderer(WINDOW, definitions(), "mariadb", LIMITS, plain=False)
    return [batch for batches in renderer(0, changes(Random(5), 200)) for batch in batches]


def statements(ctx: StageContext, batches: Sequence[StatementBatch] | None = None) -> LakeStatements:
    parts = SimpleNamespace(bounds=BOUNDS, segments=Segments(1, 9, ()), cuts=(), definitions=None, versions=(1, 1))
    window = cast(SinkWindow, parts)
    held = None if batches is None else list(map(RenderedBatch.of, batches))
    return LakeStatements(ctx.paths, window, ctx.replication.require_sql_target(), "demo", held)


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    raw = {"name": "demo", "lake": {"path": str(tmp_path)}, "target": {"db-type": "mariadb", "port": 1}}
    return StageContext(Replication.model_validate(raw), "run", lambda: pytest.fail("no Spark is needed"))


def test_statements_handed_over_equal_those_of_the_lake(ctx: StageContext) -> None:
    batches = render()
    rows = build_statement_table(WINDOW, batches)
    write_deltalake(LakePaths.of(ctx.replication).locate_table(STATEMENT.name), rows.slice(7))
    write_deltalake(LakePaths.of(ctx.replication).locate_table(STATEMENT.name), rows.slice(0, 7), mode="append")
    stored, handed = statements(ctx), statements(ctx, Random(7).sample(batches, len(batches)))
    assert (handed.compute_digest(), handed.rows, handed.count) == (stored.compute_digest(), stored.rows, stored.count)
    for place in ((segment, phase) for segment in (0, 1) for phase in (Phase.DELETE, Phase.WRITE)):
        both = [sorted(one.read_batches(*place), key=lambda batch: batch.batch) for one in (stored, handed)]
        assert both[0] == both[1]
        assert both[0]


def test_stored_statements_are_verified_by_their_texts(ctx: StageContext) -> None:
    rows = build_statement_table(WINDOW, render())
    changed = rows.set_column(rows.schema.get_field_index("sql"), "sql", pa.array([["DELETE"]] * rows.num_rows))
    write_deltalake(LakePaths.of(ctx.replication).locate_table(STATEMENT.name), changed)
    with pytest.raises(ImmutableWindow):
        list(statements(ctx).read_batches(0, Phase.WRITE))


class CountedReads:
    """A dataset that counts the reads of its rows."""

    def __init__(self, data: Any) -> None:
        self.data, self.reads = data, 0

    def to_table(self, **asked: Any) -> pa.Table:
        self.reads += 1
        return self.data.to_table(**asked)

    @property
    def schema(self) -> pa.Schema:
        return self.data.schema

    def get_fragments(self, where: Any) -> Any:
        self.reads += 1
        return self.data.get_fragments(where)


def test_files_are_read_once_for_the_plans_of_all_segments(ctx: StageContext) -> None:
    # A window of thousands of DDL has as many segments; each of them used to scan all files.
    starts = tuple(range(2, 202))
    ddls = [drop_view(number) for number in range(1, len(starts) + 1)]
    write_deltalake(
        LakePaths.of(ctx.replication).locate_table(STATEMENT.name), build_statement_table(BOUNDS.window, ddls)
    )
    cuts = [LandedDdl(ts, ts, ts, 1, 1, 24, "d", "v", "", "", "apply", "", NOTHING, NOTHING) for ts in starts]
    parts = SimpleNamespace(
        bounds=BOUNDS, segments=Segments(1, 300, starts), cuts=cuts, definitions=None, versions=(1, 1)
    )
    window = LakeStatements(ctx.paths, cast(SinkWindow, parts), ctx.replication.require_sql_target(), "demo")
    counted = CountedReads(window._data)
    window._data = cast(Any, counted)
    assert window.list_ddls() == ddls
    assert [plan.number for plan in window.list_segments()] == list(range(len(starts) + 1))
    phases = ((plan.number, phase) for plan in window.list_segments() for phase in (Phase.DELETE, Phase.WRITE))
    assert [batch for place in phases for batch in window.read_batches(*place)] == []
    assert counted.reads == 1


@pytest.mark.parametrize(("most_bytes", "segments", "reads"), [(1 << 20, 40, 2), (600, 40, 17), (0, 8, 19)])
def test_rows_of_adjacent_segments_are_read_together(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch, most_bytes: int, segments: int, reads: int
) -> None:
    # With 3,000 DDL and some rows after each, the files used to be scanned 3,000 times, which took half an hour.
    monkeypatch.setattr(statement_module, "_SMALL_SEGMENTS_BYTES", most_bytes)
    phases = (Phase.DELETE, Phase.WRITE)
    written = [
        batch
        for number in range(segments)
        for batch in (drop_view(number), *(write_row(number, phase, place) for phase in phases for place in (0, 1)))
    ]
    rows = build_statement_table(BOUNDS.window, Random(3).sample(written, len(written)))
    write_deltalake(LakePaths.of(ctx.replication).locate_table(STATEMENT.name), rows)
    window = statements(ctx)
    counted = CountedReads(window._data)
    window._data = cast(Any, counted)
    for number in (*range(segments), 3):
        for phase in phases:
            batches = sorted(window.read_batches(number, phase), key=lambda batch: batch.batch)
            assert batches == [write_row(number, phase, place) for place in (0, 1)]
    assert counted.reads == reads
    handed = statements(ctx, Random(4).sample(written, len(written)))
    assert handed.list_ddls() == window.list_ddls()
    assert handed._bytes == window._bytes


def test_ordered_segment_expects_all_tables_that_it_touches(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:  # one batch in commit order has rows of several tables
    places = [SegmentTable(0, "d", "a"), SegmentTable(1, "d", "b"), SegmentTable(1, "d", "a")]
    monkeypatch.setattr(statement_module, "read_touched_tables", lambda *_: places)
    batches = [replace(drop_view(segment), phase=Phase.ORDERED, kind="ordered") for segment in (0, 1)]
    write_deltalake(
        LakePaths.of(ctx.replication).locate_table(STATEMENT.name), build_statement_table(BOUNDS.window, batches)
    )
    tables = SimpleNamespace(require_definition_within=lambda _db, name, *_: TABLES[name])
    parts = SimpleNamespace(bounds=BOUNDS, segments=Segments(1, 9, (5,)), cuts=(), definitions=tables, versions=(1, 1))
    window = LakeStatements(ctx.paths, cast(SinkWindow, parts), ctx.replication.require_sql_target(), "demo")
    names = [sorted(plan.expected.names) if plan.expected else [] for plan in window.list_segments()]
    assert [[name[-1] for name in one] for one in names] == [["a"], ["a", "b"]]


def drop_view(segment: int) -> StatementBatch:
    sql = (f"DROP VIEW v{segment}",)
    return StatementBatch(segment, Phase.DDL, 0, "d", "v", "ddl", sql, (-1,), "", 0, 0, compute_statement_digest(sql))


def write_row(segment: int, phase: Phase, batch: int) -> StatementBatch:
    sql = (f"DELETE FROM d.t WHERE a = {segment} AND b = {phase:d} AND c = {batch}",)
    return StatementBatch(segment, phase, batch, "d", "t", "delete", sql, (1,), "", 0, 1, compute_statement_digest(sql))


@pytest.mark.parametrize("differs", [(), ("statements",), ("manifest",)], ids=["pinned", "rows", "manifest"])
def test_statements_handed_over_count_only_if_they_are_pinned(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch, differs: tuple[str, ...]
) -> None:
    batches = render()
    manifest = ApplyManifest(
        "demo", "sql", 1, 1, 9, "c", "safe", "d", "2:", statements(ctx, batches).compute_digest(), 1, 4, 9, ()
    )
    write_deltalake(LakePaths.of(ctx.replication).locate_table(STATEMENT.name), build_statement_table(WINDOW, batches))
    handed = statements(ctx, batches if "statements" not in differs else batches[1:])
    sealed = manifest if "manifest" not in differs else replace(manifest, definitions="other")
    given = Converted(cast(Compacted, None), "2:", handed, "safe", 0, 0, manifest=sealed)
    monkeypatch.setattr(LakeStatements, "list_segments", lambda _: [])
    monkeypatch.setattr(finalize, "read_pinned", lambda *_: SimpleNamespace(merged=None, shapes=None))
    monkeypatch.setattr(finalize, "read_sql_window", lambda *_: SimpleNamespace(with_shapes=lambda _: None))
    monkeypatch.setattr(finalize, "read_statements", lambda ctx, *_: statements(ctx))
    found = finalize._require_pinned(ctx, BOUNDS, ctx.replication.require_sql_target(), manifest, given)
    assert found.compute_digest() == manifest.statement
    assert (found is handed) == (not differs)

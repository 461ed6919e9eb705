"""A window derived ahead, while the previous one is applied, is used only if the target is as expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from lakehouse import rows_of
from sqlsink import LandedShop, Sink
from structlog.testing import capture_logs
from support.mariadb import MariaDb, execute

from binlake.errors import Permanent
from binlake.spark_jobs.commands.restore import SINK_STAGES
from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.pieces import Ahead, DerivedAhead, MergedWindow
from binlake.spark_jobs.job.runner import run_sink
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.shared.sinks import SinkWindow, list_mutation_parts, read_sql_window, require_merged
from binlake.spark_jobs.stages import compact, finalize, merge

pytestmark = pytest.mark.mariadb


class Pieces:
    """A history of three landed windows; the first is derived but not yet applied. The lake has all rows."""

    def __init__(self, root: Path, server: MariaDb, landed: Path, **target: Any) -> None:
        self.sink = Sink(None, root, server, landed=landed, **target)
        self.sink.lakehouse.config["lake"] = {"path": str(root), "keep": ["change", "statement"]}
        self.sink.ctx = self.sink.lakehouse.context()
        self.ctx = self.sink.ctx
        self.first, self.second, self.third = self.sink.windows
        self.ahead: DerivedAhead | None = None
        self.sink.derive(self.first)

    def derive_ahead(self, window: Bounds, following: Bounds) -> list[Any]:
        """Derive `following` before `window` is applied; return the reasons for refusals."""
        with capture_logs() as logs, Ahead(self.ctx) as ahead:
            ahead.start(window, lambda: self._read_merged(following))
            self.ahead = ahead.take()
        return [log["reason"] for log in logs if log["event"] == "window_not_derived_ahead"]

    def _read_merged(self, bounds: Bounds) -> MergedWindow:
        rows = list_mutation_parts(self.ctx, LocalEngine(), bounds)
        states = self.ctx.schemas.read_state_at(bounds.lo), self.ctx.schemas.read_state_at(bounds.hi)
        return MergedWindow(bounds, require_merged(self.ctx, bounds.lo, bounds.hi), tuple(rows), states)

    def run_sink(self, bounds: Bounds) -> list[str]:
        """Run compact and convert with what was derived ahead."""
        compacted = run_stage("compact", self.ctx, bounds, given=self.ahead)
        return [compacted.state, run_stage("convert", self.ctx, bounds, given=compacted.derived).state]

    def versions(self) -> list[int]:
        return [DeltaTable(self.ctx.paths.locate_table(name)).version() for name in ("change", "statement")]

    def rows(self) -> list[Any]:
        found = (rows_of(self.ctx.paths.locate_table(name)) for name in ("change", "statement"))
        return [sorted(({k: str(v) for k, v in row.items()} for row in table), key=str) for table in found]

    def require_equal(self, bounds: Bounds) -> None:
        assert self.sink.target() == self.sink.model(bounds.hi)


@pytest.fixture
def pieces(mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop) -> Pieces:
    return Pieces(tmp_path, mariadb, landed_shop(3))


@pytest.mark.parametrize(
    "target",
    [
        pytest.param({}, id="atomic"),
        pytest.param({"mode": "parallel", "safe-mode": "auto"}, id="parallel", marks=pytest.mark.soak),
        pytest.param({"mode": "ordered"}, id="ordered", marks=pytest.mark.soak),
    ],
)
def test_windows_derived_ahead_are_applied_unchanged(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop, target: dict[str, Any]
) -> None:
    # 18, DESIGN 3.7: six DDL on four tables in the second window
    pieces = Pieces(tmp_path / "ahead", mariadb, landed_shop(3), **target)
    for window, following in ((pieces.first, pieces.second), (pieces.second, pieces.third)):
        assert pieces.derive_ahead(window, following) == []
        written = pieces.versions()
        finalize.run(pieces.ctx, window)
        pieces.require_equal(window)
        assert pieces.run_sink(following) == ["done", "done"]
        assert pieces.versions() == written
    finalize.run(pieces.ctx, pieces.third)
    pieces.require_equal(pieces.third)

    in_turn = Pieces(tmp_path / "turn", mariadb, landed_shop(3), **target)
    finalize.run(in_turn.ctx, in_turn.first)
    for window in (in_turn.second, in_turn.third):
        in_turn.sink.apply(window)
    assert pieces.rows() == in_turn.rows()


def test_nothing_is_sealed_before_the_previous_window_is_applied(pieces: Pieces) -> None:
    assert pieces.derive_ahead(pieces.first, pieces.second) == []
    assert pieces.ctx.windows.read_apply_manifests(pieces.second.lo, pieces.second.hi) == []
    finalize.run(pieces.ctx, pieces.first)
    pieces.run_sink(pieces.second)
    assert len(pieces.ctx.windows.read_apply_manifests(pieces.second.lo, pieces.second.hi)) == 1


def test_nothing_is_derived_after_a_window_that_is_not_the_targets_next(pieces: Pieces) -> None:
    finalize.run(pieces.ctx, pieces.first)
    written = pieces.versions()
    for window in (pieces.first, pieces.third):
        assert pieces.derive_ahead(window, pieces.second) == []
    assert pieces.versions() == written


def set_table_aside(pieces: Pieces) -> None:
    execute(
        pieces.sink.server,
        "INSERT INTO tidb_binlog.binlake_aside (clusterID, db, tbl, task, since, by_whom, reason)"
        f" SELECT clusterID, 'shop', 'log', 'x', {pieces.first.hi}, 'command', '' FROM tidb_binlog.checkpoint",
    )


def shrink_packets(pieces: Pieces) -> None:
    execute(pieces.sink.server, "SET GLOBAL max_allowed_packet = 1048576")


def rewrite_statements(pieces: Pieces) -> None:
    """Act like another process that derives the window with another configuration."""
    place = pieces.ctx.paths.locate_table("statement")
    rows = DeltaTable(place).to_pyarrow_table()
    other = rows.set_column(rows.schema.get_field_index("digest"), "digest", [["0"] * rows.num_rows])
    write_deltalake(place, other, mode="overwrite")


@pytest.mark.parametrize("happens", [set_table_aside, shrink_packets, rewrite_statements])
def test_window_is_derived_again_after_an_unexpected_change(pieces: Pieces, happens: Any) -> None:
    with pieces.sink.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        [packet] = cursor.fetchone() or ()
    try:
        assert pieces.derive_ahead(pieces.first, pieces.second) == []
        finalize.run(pieces.ctx, pieces.first)
        happens(pieces)
        before = pieces.versions()
        pieces.run_sink(pieces.second)
        assert pieces.versions()[1] > before[1]
        finalize.run(pieces.ctx, pieces.second)
        target, model = pieces.sink.target(), pieces.sink.model(pieces.second.hi)
        if happens is set_table_aside:
            assert target.pop(("shop", "log")) != model.pop(("shop", "log"))
        assert target == model
    finally:
        execute(pieces.sink.server, f"SET GLOBAL max_allowed_packet = {packet}")


def test_work_derived_ahead_is_discarded_if_the_previous_window_fails(pieces: Pieces) -> None:
    # The target has not moved, so the next run takes both windows as one.
    assert pieces.derive_ahead(pieces.first, pieces.second) == []
    both = Bounds(pieces.first.lo, pieces.second.hi)
    results = run_sink(pieces.ctx, SINK_STAGES, both, given=pieces.ahead)
    assert (results[-1].lo, results[-1].hi) == (both.lo, both.hi)
    pieces.require_equal(pieces.second)


def test_window_that_needs_the_targets_shapes_is_not_derived_ahead(pieces: Pieces) -> None:
    own = pieces.sink.lakehouse.config
    pieces.sink.lakehouse.config = {**own, "target": {**own["target"], "sync-mode": 2}}
    pieces.ctx = pieces.sink.lakehouse.context()
    reason = "the target's tables may differ from the source's"
    assert pieces.derive_ahead(pieces.first, pieces.second) == [reason]


def test_window_with_keys_of_a_shared_table_is_not_derived_ahead(
    pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S4-03: the target is asked for keys, so it must already have the previous window's rows.
    monkeypatch.setattr(compact, "find_shared_tables", lambda *_: {("shop", "item")})
    reason = "the target must be asked which keys of a shared table it has"
    assert pieces.derive_ahead(pieces.first, pieces.second) == [reason]


def test_error_while_deriving_ahead_is_left_to_the_stage(pieces: Pieces) -> None:
    def fail() -> MergedWindow:
        raise Permanent("the piece cannot be landed")

    with capture_logs() as logs, Ahead(pieces.ctx) as ahead:
        ahead.start(pieces.first, fail)
        assert ahead.take() is None
    assert [log["error"] for log in logs if log["event"] == "window_not_derived_ahead"] == ["Permanent"]
    finalize.run(pieces.ctx, pieces.first)
    pieces.sink.apply(pieces.second)
    pieces.require_equal(pieces.second)


def test_programming_error_while_deriving_ahead_is_raised(pieces: Pieces) -> None:
    def fail() -> MergedWindow:
        raise KeyError("a bug")

    with Ahead(pieces.ctx) as ahead:
        ahead.start(pieces.first, fail)
        with pytest.raises(KeyError):
            ahead.take()


def _definitions_at(window: SinkWindow, ts: int) -> list[Any]:
    tables = (window.definitions.find_at(*name, ts) for name in window.base.list_names())
    return [None if table is None else table.raw for table in tables]


def test_what_merge_hands_on_is_what_the_lake_has(pieces: Pieces) -> None:  # 34
    ctx, bounds = pieces.ctx, pieces.second
    merged = merge.run(ctx, bounds).derived
    assert merged.merged == require_merged(ctx, bounds.lo, bounds.hi)
    given, read = (read_sql_window(ctx, bounds, merged.merged, one) for one in (merged, None))
    assert len(read.ddls) > 5
    assert (given.segments, given.versions) == (read.segments, read.versions)
    for ts in (bounds.lo, *read.segments.starts, bounds.hi):
        assert _definitions_at(given, ts) == _definitions_at(read, ts) != []
    # Another window than its own is read from the lake.
    longer = Bounds(pieces.first.lo, bounds.hi)
    assert read_sql_window(ctx, longer, merged.merged, merged).versions[0] < read.versions[0]
    finalize.run(ctx, pieces.first)
    sealed = [compact.run(ctx, bounds, one).derived.manifest for one in (merged, None)]
    assert sealed[0] == sealed[1]
    results = run_sink(ctx, SINK_STAGES, bounds, given=merged)
    assert [result.state for result in results] == ["done", "done", "done"]
    pieces.require_equal(bounds)

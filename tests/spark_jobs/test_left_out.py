"""Windows that one process derives and applies leave out `change` and `statement`: who needs the rows derives them
again, and they count only if they have the sealed digests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from lakehouse import rows_of
from sqlsink import LandedShop, Sink
from support.examples import spread
from support.mariadb import MariaDb

from binlake.errors import ImmutableWindow, LostRange
from binlake.repair.rangerepair import BackfillProgress
from binlake.spark_jobs.commands.backfill import rebuild
from binlake.spark_jobs.commands.recover import recover
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.shared import rendered
from binlake.spark_jobs.shared.netchange import WindowNetChange
from binlake.spark_jobs.shared.sqlwindow import Converted, read_newest
from binlake.spark_jobs.stages import compact, convert, finalize, merge
from binlake.statements import BatchLimits, TableStatements
from binlake.target import apply_window, read_checkpoint_ts

pytestmark = [pytest.mark.mariadb]


class OneProcess:
    """A sink whose stages hand on what they derive. `plain`, the third window, has no DDL; the ones before it do."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.plain = sink.windows[2]

    def merge(self, bounds: Bounds) -> MergedWindow:
        merged = merge.run(self.sink.ctx, bounds).derived
        assert isinstance(merged, MergedWindow)
        return merged

    def derive(self, bounds: Bounds) -> Converted:
        compacted = compact.run(self.sink.ctx, bounds, self.merge(bounds))
        converted = convert.run(self.sink.ctx, Bounds(compacted.lo, compacted.hi), compacted.derived).derived
        assert isinstance(converted, Converted)
        return converted

    def derive_plain(self) -> Converted:
        """Derive the window without DDL, after the ones before it were applied."""
        for bounds in self.sink.windows[:2]:
            self.sink.apply(bounds)
        return self.derive(self.plain)

    def set_target(self, **settings: Any) -> None:
        self.sink.lakehouse.config["target"] |= {name.replace("_", "-"): value for name, value in settings.items()}
        self.sink.ctx = self.sink.lakehouse.context()

    def count(self, table: str, bounds: Bounds) -> int:
        found = rows_of(self.sink.ctx.paths.locate_table(table))
        return sum(row["window"] == bounds.window for row in found)

    def open_at_target(self, converted: Converted) -> None:
        """Let the target hold the window open, with its process dead."""

        def die(step: str) -> None:
            if step == "opened":
                raise ConnectionAbortedError("power cut")

        assert converted.manifest is not None
        target = self.sink.ctx.replication.require_sql_target()
        with pytest.raises(ConnectionAbortedError):
            apply_window(target, converted.manifest, converted.statements, hook=die)

    def require_applied(self, bounds: Bounds) -> None:
        assert self.sink.target() == self.sink.model(bounds.hi)


@pytest.fixture
def one(mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop) -> OneProcess:
    return OneProcess(Sink(None, tmp_path, mariadb, landed=landed_shop(3)))


def test_neither_table_is_written_and_the_target_is_the_same(one: OneProcess) -> None:  # 34
    converted = one.derive_plain()
    versions = [DeltaTable(one.sink.ctx.paths.locate_table(name)).version() for name in ("change", "statement")]
    manifest = converted.manifest
    assert manifest is not None
    assert (len(manifest.limits), converted.statements.count > 0) == (3, True)
    sealed = read_newest(one.sink.ctx, one.plain)
    assert (sealed.change, sealed.rows > 0) == (manifest.change, True)
    finalize.run(one.sink.ctx, one.plain, converted)
    one.require_applied(one.plain)
    assert [one.count(name, one.plain) for name in ("change", "statement")] == [0, 0]
    assert versions == [DeltaTable(one.sink.ctx.paths.locate_table(n)).version() for n in ("change", "statement")]


def test_a_window_with_ddl_keeps_its_statements(one: OneProcess) -> None:
    first = one.sink.windows[0]
    converted = one.derive(first)
    assert converted.ddls > 0
    assert converted.manifest is not None
    assert (converted.manifest.limits, one.count("change", first)) == ((), 0)
    assert one.count("statement", first) == converted.statements.count
    # Without what compact handed on, its rows are derived again.
    again_derived = convert.run(one.sink.ctx, first)
    assert (again_derived.state, again_derived.derived.statements.count) == ("already", converted.statements.count)
    finalize.run(one.sink.ctx, first)
    one.require_applied(first)


@pytest.mark.parametrize("keep", spread([["change", "statement"], ["change"], ["statement"]], least=1))
def test_kept_tables_have_the_rows(one: OneProcess, keep: list[str]) -> None:
    one.sink.lakehouse.config["lake"] = {"path": str(one.sink.lakehouse.root), "keep": keep}
    one.sink.ctx = one.sink.lakehouse.context()
    converted = one.derive_plain()
    assert [name for name in ("change", "statement") if one.count(name, one.plain)] == keep
    finalize.run(one.sink.ctx, one.plain)
    one.require_applied(one.plain)
    assert converted.manifest is not None
    assert bool(converted.manifest.limits) == ("statement" not in keep)


def _run_finalize(one: OneProcess) -> None:
    finalize.run(one.sink.ctx, one.plain)


def _run_all_stages_alone(one: OneProcess) -> None:
    one.sink.apply(one.plain)


def _run_in_one_process(one: OneProcess) -> None:
    finalize.run(one.sink.ctx, one.plain, one.derive(one.plain))


def _recover(one: OneProcess) -> None:
    replication = one.sink.ctx.replication.model_copy(
        update={"source": one.sink.ctx.replication.source.model_copy(update={"timeout_s": 0.2})}
    )
    assert recover(replication, lambda _: one.sink.ctx)[-1].state == "recovered"


@pytest.mark.parametrize(
    "again_by", spread([_run_finalize, _run_all_stages_alone, _recover, _run_in_one_process], least=2)
)
def test_another_process_finishes_the_open_window(one: OneProcess, again_by: Callable[[OneProcess], None]) -> None:
    # S3-08, S3-09, R-62; a configuration that would give other batches counts from the next window on
    one.open_at_target(one.derive_plain())
    one.set_target(txn_batch=3)
    again_by(one)
    one.require_applied(one.plain)
    assert read_checkpoint_ts(one.sink.ctx.replication, 7) == one.plain.hi
    assert [one.count(name, one.plain) for name in ("change", "statement")] == [0, 0]


def test_a_sealed_window_that_was_never_opened_is_applied_alone_or_sealed_anew(one: OneProcess) -> None:
    first = one.derive_plain()
    one.set_target(txn_batch=3)
    second = one.derive(one.plain)
    assert first.manifest is not None
    assert second.manifest is not None
    assert (first.manifest.limits[0], second.manifest.limits[0]) == (1000, 3)
    assert first.manifest.statement != second.manifest.statement
    finalize.run(one.sink.ctx, one.plain)
    one.require_applied(one.plain)


def test_rows_of_an_earlier_attempt_go(one: OneProcess) -> None:
    for bounds in one.sink.windows[:2]:
        one.sink.apply(bounds)
    one.sink.derive(one.plain)
    assert all(one.count(name, one.plain) for name in ("change", "statement"))
    one.derive(one.plain)
    assert [one.count(name, one.plain) for name in ("change", "statement")] == [0, 0]


def _render_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TableStatements.__init__

    def cut_smaller(self: TableStatements, *args: Any, **options: Any) -> None:
        begin(self, *args, **options | {"limits": BatchLimits(1)})

    monkeypatch.setattr(TableStatements, "__init__", cut_smaller)


def _reduce_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = WindowNetChange.prepare

    def lose_a_row(self: WindowNetChange, *args: Any) -> Any:
        reduce, groups = prepare(self, *args)
        return (lambda runs: (rows.slice(1) for rows in reduce(runs))), groups

    monkeypatch.setattr(rendered.WindowNetChange, "prepare", lose_a_row)


@pytest.mark.parametrize(
    ("rule", "table", "is_open"),
    # Each rule once in `make test`, with an open window and without.
    spread(
        [(_render_otherwise, "statement", True), (_render_otherwise, "statement", False),
         (_reduce_otherwise, "change", False), (_reduce_otherwise, "change", True)],
        least=2,
    ),
)  # fmt: skip
def test_rows_that_come_out_otherwise_never_reach_the_target(
    one: OneProcess, rule: Callable[[pytest.MonkeyPatch], None], table: str, is_open: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # R-62  # fmt: skip
    converted = one.derive_plain()
    if is_open:
        one.open_at_target(converted)
    before = one.sink.target()
    with monkeypatch.context() as patched:
        rule(patched)
        with pytest.raises(ImmutableWindow, match=f"`{table}` were not written, and those derived again differ"):
            finalize.run(one.sink.ctx, one.plain)
    assert one.sink.target() == before
    assert read_checkpoint_ts(one.sink.ctx.replication, 7) == one.plain.lo
    finalize.run(one.sink.ctx, one.plain)
    one.require_applied(one.plain)


def test_lost_row_changes_stop_the_window_before_the_target_is_touched(one: OneProcess) -> None:  # S3-13
    one.open_at_target(one.derive_plain())
    folder = Path(one.sink.ctx.paths.locate_table("mutation"))
    shutil.copytree(folder, folder.with_name("copy"))
    for file in folder.rglob("*.parquet"):
        file.unlink()
    before = one.sink.target()
    with pytest.raises(LostRange) as lost:
        finalize.run(one.sink.ctx, one.plain)
    assert one.plain.window in str(lost.value)
    assert one.sink.target() == before
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    finalize.run(one.sink.ctx, one.plain)
    one.require_applied(one.plain)


def test_rebuild_writes_the_rows_and_says_whether_they_are_the_sealed_ones(one: OneProcess) -> None:
    finalize.run(one.sink.ctx, one.plain, one.derive_plain())
    ctx, bounds = one.sink.ctx, one.plain

    def run(name: str) -> tuple[str, list[str]]:
        progress = BackfillProgress(ctx.windows, name, bounds.lo, bounds.hi)
        [result] = rebuild(ctx, progress, through="convert")
        return result.state, result.detail["changed"]

    assert run("same") == ("same", [])
    assert all(one.count(name, bounds) for name in ("change", "statement"))
    assert run("again") == ("same", [])
    one.require_applied(bounds)


def test_rebuild_of_a_window_that_left_them_out_sees_other_statements(
    one: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    finalize.run(one.sink.ctx, one.plain, one.derive_plain())
    _render_otherwise(monkeypatch)
    progress = BackfillProgress(one.sink.ctx.windows, "other", one.plain.lo, one.plain.hi)
    [result] = rebuild(one.sink.ctx, progress, through="convert")
    assert (result.state, result.detail["changed"]) == ("changed", ["statement"])

"""compact's sealed manifest for convert and finalize: verified, pinned, and readable for older lakes; no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlsink import LandedShop, Sink
from support.examples import spread
from support.mariadb import MariaDb

from binlake.ddl.definitions import Shapes, TableShape
from binlake.errors import BinlakeError, CheckpointConflict, DamagedManifest, ImmutableWindow
from binlake.lake.tables import CHANGE
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.lake import clear_rows
from binlake.spark_jobs.shared.sinks import build_window_predicate, read_sql_window, require_merged
from binlake.spark_jobs.shared.sqlwindow import read_current, read_newest, read_pinned
from binlake.spark_jobs.shared.statements import read_statements
from binlake.spark_jobs.stages import compact, convert, finalize, merge
from binlake.target import apply_window
from binlake.window.derived import CompactManifest
from binlake.window.manifest import ApplyManifest

pytestmark = [pytest.mark.mariadb]

Row = dict[str, Any]


@pytest.fixture
def sink(mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop) -> Sink:
    """The second window, which has six DDL, is next; the first is applied."""
    found = Sink(None, tmp_path, mariadb, landed=landed_shop(2))
    found.apply(found.windows[0])
    return found


def another_process(sink: Sink) -> None:
    """Empty the memory, as in another process."""
    sink.ctx = sink.lakehouse.context()


def rewrite(sink: Sink, stage: str, bounds: Bounds, change: Callable[[Row], Row]) -> None:
    """Edit the events of `stage` of the window in the lake by hand."""
    table = sink.ctx.windows._table
    own = [row["stage"] == stage and (row["lo"], row["hi"]) == (bounds.lo, bounds.hi) for row in table.read_rows()]
    assert any(own)
    table.replace([change(row) if is_own else row for row, is_own in zip(table.read_rows(), own, strict=True)])
    another_process(sink)


def run_compact(sink: Sink, bounds: Bounds) -> CompactManifest:
    compact.run(sink.ctx, bounds)
    another_process(sink)
    return read_newest(sink.ctx, bounds)


def as_before_manifests(sink: Sink, bounds: Bounds) -> None:
    """Rewrite the events of merge, compact and convert in the form of the previous version."""
    sealed = read_newest(sink.ctx, bounds)
    detail = {"ordered": sealed.ordered, "segments": len(sealed.cuts) + 1, "shapes": sealed.shapes.to_list()}
    rewrite(sink, "merge", bounds, lambda row: {**row, "manifest": ""})
    rewrite(sink, "compact", bounds, lambda row: {**row, "manifest": "", "detail": json.dumps(detail)})


def without_compact(row: Row) -> Row:
    return {**row, "manifest": replace(ApplyManifest.from_json(row["manifest"]), compact="").to_json()}


def damage(row: Row) -> Row:
    assert '"rows":' in row["manifest"]
    return {**row, "manifest": row["manifest"].replace('"rows":', '"rows":1', 1)}


def open_window(sink: Sink, bounds: Bounds) -> None:
    """Let the target hold the window open, with its finalize dead."""
    manifest = sink.ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)[-1]
    sealed = read_pinned(sink.ctx, manifest)
    window = read_sql_window(sink.ctx, bounds, sealed.merged).with_shapes(sealed.shapes)
    target = sink.ctx.replication.require_sql_target()
    with pytest.raises(ConnectionAbortedError):
        apply_window(target, manifest, read_statements(sink.ctx, window, target), hook=_die)
    another_process(sink)


def _die(step: str) -> None:
    if step == "opened":
        raise ConnectionAbortedError("power cut")


def require_applied(sink: Sink, bounds: Bounds) -> None:
    assert finalize.run(sink.ctx, bounds).state == "done"
    assert sink.target() == sink.model(bounds.hi)


def test_rerun_seals_the_same_and_the_apply_manifest_names_it(sink: Sink) -> None:
    bounds = sink.windows[1]
    first, second = run_compact(sink, bounds), run_compact(sink, bounds)
    assert first == second
    assert (len(first.cuts), first.merged.ddls > 5, first.merged.whole) == (6, True, True)
    convert.run(sink.ctx, bounds)
    [manifest] = sink.ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    assert (manifest.compact, manifest.cuts) == (first.compute_digest(), first.cuts)
    assert read_pinned(sink.ctx, manifest) == first
    [event] = [event for event in sink.ctx.windows.read_events(stage="compact") if event["hi"] == bounds.hi][-1:]
    assert not {"ordered", "shapes"} & set(json.loads(event["detail"]))
    require_applied(sink, bounds)


def test_sealed_data_is_not_read_back_in_the_same_process(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = sink.windows[1]
    compacted = compact.run(sink.ctx, bounds)
    monkeypatch.setattr(
        type(sink.ctx.windows), "read_events", lambda *_, **_kw: pytest.fail("the manifest must not be read back")
    )
    converted = convert.run(sink.ctx, bounds, compacted.derived)
    finalize.run(sink.ctx, bounds, converted.derived)
    assert sink.target() == sink.model(bounds.hi)


@pytest.mark.parametrize(
    ("change", "says"),
    spread([
        (damage, "damaged: its digest is not that of its text"),
        (lambda row: {**row, "manifest": ""}, "the event of compact has no manifest"),
        (lambda row: {**row, "manifest": row["manifest"][:-9]}, "is not valid JSON"),
        (lambda row: {**row, "manifest": row["manifest"].replace('"version":1', '"version":9')}, "another version"),
    ], least=2),
)  # fmt: skip
def test_altered_manifest_stops_both_stages_until_compact_runs_again(
    sink: Sink, change: Callable[[Row], Row], says: str
) -> None:
    bounds = sink.windows[1]
    compact.run(sink.ctx, bounds)
    rewrite(sink, "compact", bounds, change)
    with pytest.raises(DamagedManifest, match=says) as stopped:
        convert.run(sink.ctx, bounds)
    assert stopped.value.where["window"] == bounds.window
    assert "run compact again for this window" in stopped.value.hint
    compact.run(sink.ctx, bounds)
    another_process(sink)
    convert.run(sink.ctx, bounds)
    rewrite(sink, "compact", bounds, change)
    with pytest.raises(DamagedManifest, match="that the apply manifest refers to") as stopped:
        finalize.run(sink.ctx, bounds)
    assert "run compact again for this window" in stopped.value.hint
    assert sink.target() == sink.model(bounds.lo)
    compact.run(sink.ctx, bounds)
    another_process(sink)
    require_applied(sink, bounds)


def test_manifest_of_another_window_is_refused(sink: Sink) -> None:
    first, bounds = sink.windows[:2]
    compact.run(sink.ctx, bounds)
    foreign = read_newest(sink.ctx, first).to_json()
    rewrite(sink, "compact", bounds, lambda row: {**row, "manifest": foreign})
    with pytest.raises(DamagedManifest, match="belongs to another window") as stopped:
        convert.run(sink.ctx, bounds)
    assert stopped.value.where == {"sealed_for": f"demo {first.window}", "window": bounds.window}


def test_damaged_manifest_of_an_open_window_is_sealed_again_unchanged(sink: Sink) -> None:
    bounds = sink.windows[1]
    sealed = run_compact(sink, bounds)
    convert.run(sink.ctx, bounds)
    open_window(sink, bounds)
    rewrite(sink, "compact", bounds, damage)
    for stage in (convert, finalize):
        with pytest.raises(DamagedManifest, match="that the apply manifest refers to"):
            stage.run(sink.ctx, bounds)
    sink.lakehouse.config["target"]["mode"] = "ordered"
    another_process(sink)
    with pytest.raises(ImmutableWindow, match="would seal a different manifest from the one it refers to"):
        compact.run(sink.ctx, bounds)
    del sink.lakehouse.config["target"]["mode"]
    another_process(sink)
    assert run_compact(sink, bounds) == sealed
    assert convert.run(sink.ctx, bounds).state == "already"
    require_applied(sink, bounds)


def test_finalize_uses_the_manifest_on_which_its_statements_are_based(sink: Sink) -> None:
    bounds = sink.windows[1]
    compact.run(sink.ctx, bounds)
    convert.run(sink.ctx, bounds)
    sealed = read_newest(sink.ctx, bounds)
    # Derive for another target, which has a column of its own.
    other = replace(sealed, shapes=Shapes({("shop", "item"): TableShape(dropped=("price",))}))
    event = WindowEvent("compact", bounds.lo, bounds.hi, "done", sink="sql", manifest=other.to_json())
    sink.ctx.windows.record(event)
    another_process(sink)
    assert read_newest(sink.ctx, bounds) == other
    [manifest] = sink.ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    assert read_pinned(sink.ctx, manifest) == sealed
    require_applied(sink, bounds)


def test_open_window_is_derived_again_for_the_mode_of_its_manifest(sink: Sink) -> None:
    bounds = sink.windows[1]
    sealed = run_compact(sink, bounds)
    convert.run(sink.ctx, bounds)
    open_window(sink, bounds)
    clear_rows(sink.ctx.paths, CHANGE, build_window_predicate(bounds), {})
    sink.lakehouse.config["target"]["mode"] = "ordered"
    another_process(sink)
    assert compact.run(sink.ctx, bounds).rows == sealed.rows > 0


def test_table_shapes_are_not_guessed_if_they_may_differ(sink: Sink) -> None:  # S4-26, R-12
    bounds = sink.windows[1]
    compact.run(sink.ctx, bounds)
    convert.run(sink.ctx, bounds)
    open_window(sink, bounds)
    rewrite(sink, "compact", bounds, damage)
    sink.lakehouse.config["target"]["sync-mode"] = 2
    another_process(sink)
    with pytest.raises(DamagedManifest, match="tables differed when this window was derived") as stopped:
        compact.run(sink.ctx, bounds)
    assert "Delta time travel" in stopped.value.hint


@pytest.mark.parametrize(
    "reached", ["merge", "opened", *(pytest.param(stage, marks=pytest.mark.soak) for stage in ("compact", "convert"))]
)
def test_window_left_half_way_by_the_previous_version_is_resumed(sink: Sink, reached: str) -> None:
    bounds = sink.windows[1]
    sealed = run_compact(sink, bounds)
    if reached == "merge":
        before = require_merged(sink.ctx, bounds.lo, bounds.hi)
        rewrite(sink, "merge", bounds, lambda row: {**row, "manifest": ""})
        assert require_merged(sink.ctx, bounds.lo, bounds.hi) == before
        assert run_compact(sink, bounds) == sealed
        convert.run(sink.ctx, bounds)
        require_applied(sink, bounds)
        return
    if reached != "compact":
        convert.run(sink.ctx, bounds)
        rewrite(sink, "convert", bounds, without_compact)
    if reached == "opened":
        open_window(sink, bounds)
    as_before_manifests(sink, bounds)
    assert read_current(sink.ctx, bounds) == sealed
    if reached == "opened":
        # The window stays unchanged, whatever the configuration says now.
        sink.lakehouse.config["target"]["mode"] = "ordered"
        another_process(sink)
        assert run_compact(sink, bounds) == sealed
        assert convert.run(sink.ctx, bounds).state == "already"
    elif reached == "compact":
        convert.run(sink.ctx, bounds)
    require_applied(sink, bounds)


def test_changed_result_of_merge_requires_compact_again(sink: Sink) -> None:
    bounds = sink.windows[1]
    compact.run(sink.ctx, bounds)
    sink.lakehouse.config["filter"] = {"ignore-table": [{"db-name": "shop", "tbl-name": "log"}]}
    another_process(sink)
    merge.run(sink.ctx, bounds)
    with pytest.raises(CheckpointConflict, match="merge has derived this window again with another result") as stopped:
        convert.run(sink.ctx, bounds)
    assert "run compact again" in stopped.value.hint
    compact.run(sink.ctx, bounds)
    another_process(sink)
    assert convert.run(sink.ctx, bounds).state == "done"


def test_rows_lost_after_compact_are_detected(sink: Sink) -> None:
    bounds = sink.windows[1]
    compact.run(sink.ctx, bounds)
    another_process(sink)
    clear_rows(sink.ctx.paths, CHANGE, build_window_predicate(bounds), {})
    with pytest.raises(ImmutableWindow, match="`change` does not have the rows that compact wrote") as stopped:
        convert.run(sink.ctx, bounds)
    assert "run compact again for this window" in stopped.value.hint
    assert sink.ctx.windows.read_apply_manifests(bounds.lo, bounds.hi) == []


def test_damaged_manifest_of_merge_requires_merge_again(sink: Sink) -> None:
    bounds = sink.windows[1]
    rewrite(sink, "merge", bounds, damage)
    with pytest.raises(DamagedManifest, match="the merge manifest is damaged") as stopped:
        compact.run(sink.ctx, bounds)
    assert stopped.value.hint == "run merge of that window again"
    assert isinstance(stopped.value, BinlakeError)
    assert stopped.value.kind == "Permanent"
    merge.run(sink.ctx, bounds)
    assert compact.run(sink.ctx, bounds).state == "done"

"""Where the next window of a target may start: at its checkpoint, within the lake (hazards R-43)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from binlake.errors import CheckpointConflict, ImmutableWindow, LostRange
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.shared.nextwindow import find_next_start
from binlake.spark_jobs.shared.sqlwindow import NO_ROWS, open_manifest
from binlake.target import TargetPosition
from binlake.window.manifest import ApplyManifest


def context(landed: tuple[int, int] | None) -> StageContext:
    windows = SimpleNamespace(find_landed_range=lambda: landed)
    return cast(StageContext, cast(Any, SimpleNamespace(windows=windows, paths=SimpleNamespace(root="/lake"))))


def start(checkpoint: int | None, landed: tuple[int, int] | None) -> int:
    return find_next_start(context(landed), TargetPosition(checkpoint, None, 1 << 20))


def test_target_without_a_checkpoint_starts_at_the_lakes_start() -> None:
    assert start(None, (100, 300)) == 100


@pytest.mark.parametrize("checkpoint", [100, 200, 300])
def test_the_next_window_starts_at_the_checkpoint(checkpoint: int) -> None:
    assert start(checkpoint, (100, 300)) == checkpoint


def test_checkpoint_ahead_of_the_landed_windows_is_refused() -> None:
    with pytest.raises(CheckpointConflict, match="301 is ahead of the landed ts 300") as stopped:
        start(301, (100, 300))
    assert "restored from an older copy" in stopped.value.hint


def test_checkpoint_from_before_the_lake_is_a_lost_range() -> None:
    with pytest.raises(LostRange, match="the target is at 99, below the start of the lake, 100"):
        start(99, (100, 300))


def test_no_start_before_anything_is_landed() -> None:
    with pytest.raises(CheckpointConflict, match="nothing has landed yet"):
        start(100, None)


def test_open_window_sealed_by_an_older_version_is_not_compared() -> None:
    sealed = ApplyManifest(
        replication="r", sink="sql", cluster_id=1, lo=100, hi=200, config_hash="", safe_mode="safe", definitions="",
        change=NO_ROWS, statement="", segments=1, rows=0, schema_version=1, windows=("100-200",),
    )  # fmt: skip
    older = replace(sealed, change=NO_ROWS.removeprefix("2:"))
    for manifest in (sealed, older):
        windows = SimpleNamespace(read_apply_manifests=lambda *_, one=manifest: [one])
        position = SimpleNamespace(opened=SimpleNamespace(manifest=manifest.compute_digest()), window=(100, 200))
        ctx = cast(StageContext, SimpleNamespace(windows=windows))
        if manifest is sealed:
            assert open_manifest(ctx, Bounds(100, 200), cast(TargetPosition, position)) is sealed
            continue
        with pytest.raises(ImmutableWindow, match="an older version of Binlake sealed it") as stopped:
            open_manifest(ctx, Bounds(100, 200), cast(TargetPosition, position))
        assert "`finalize` of this window alone" in stopped.value.hint

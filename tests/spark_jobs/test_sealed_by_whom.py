"""convert seals what compact derived for it, and finalize uses the manifest that was sealed last; no Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlake.config.servers import TargetSection
from binlake.ddl.definitions import Segments
from binlake.errors import CheckpointConflict
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.shared.sqlwindow import read_current
from binlake.spark_jobs.stages import convert, finalize
from binlake.window.derived import CompactManifest, Merged
from binlake.window.manifest import ApplyManifest

BOUNDS = Bounds(10, 20)


COMPACTED = CompactManifest("r", "sql", 10, 20, False, 4, Merged(4, 2, True, ("10-20",)), (12, 15))


@pytest.fixture
def ctx(tmp_path: Path) -> Any:
    return SimpleNamespace(windows=WindowLog(LakePaths(str(tmp_path))), replication=SimpleNamespace(name="r"))


def test_compact_result_of_another_window_is_not_used(ctx: Any) -> None:
    # an empty `change` means that nothing changed, not that compact did not run.
    wider = replace(COMPACTED, hi=30)
    ctx.windows.record(WindowEvent("compact", 10, 30, "done", sink="sql", manifest=wider.to_json()))
    with pytest.raises(CheckpointConflict, match="compact has not derived this window") as stopped:
        read_current(ctx, BOUNDS)
    assert stopped.value.hint == "run compact, then convert"


@pytest.mark.parametrize(
    ("is_ordered", "mode", "starts", "says"),
    [
        (False, "atomic", (12, 15), ""),
        (True, "ordered", (12, 15), ""),
        (False, "ordered", (12, 15), "for this target.mode"),
        (True, "parallel", (12, 15), "for this target.mode"),
        (False, "atomic", (12, 16), "with the segments"),
        (False, "atomic", (12,), "with the segments"),
    ],
)
def test_convert_accepts_only_compact_results_for_its_mode_and_segments(
    is_ordered: bool, mode: Any, starts: tuple[int, ...], says: str
) -> None:
    window: Any = SimpleNamespace(segments=Segments(10, 20, starts))
    sealed = replace(COMPACTED, ordered=is_ordered)
    if not says:
        convert._require_compacted(sealed, window, TargetSection(mode=mode))
        return
    with pytest.raises(CheckpointConflict, match=f"has not derived this window {says}") as stopped:
        convert._require_compacted(sealed, window, TargetSection(mode=mode))
    assert stopped.value.hint == "run compact again, then convert"


def test_finalize_uses_the_last_seal_even_if_it_was_sealed_before(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    #
    first = ApplyManifest("r", "sql", 1, 10, 20, "c", "safe", "d", "ch", "st", 1, 4, 9, ("10-20",))
    second = replace(first, statement="other")
    for manifest in (first, second, first):
        sealed = WindowEvent("convert", 10, 20, "done", 1, 0.0, "run", "sql", manifest=manifest.to_json())
        ctx.windows.record(sealed)
    monkeypatch.setattr(finalize, "read_target_position", lambda *_: SimpleNamespace(opened=None))
    assert finalize._choose_manifest(ctx, BOUNDS) == first
    opened = SimpleNamespace(opened=SimpleNamespace(manifest=second.compute_digest()))
    monkeypatch.setattr(finalize, "read_target_position", lambda *_: opened)
    assert finalize._choose_manifest(ctx, BOUNDS) == second

"""convert seals what compact derived for it, and finalize takes the manifest that was sealed last; no Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlake.config.model import Target
from binlake.errors import CheckpointConflict
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.window.manifest import ApplyManifest
from spark_jobs.context import Bounds
from spark_jobs.stages import convert, finalize

BOUNDS = Bounds(10, 20)


@pytest.fixture
def ctx(tmp_path: Path) -> Any:
    return SimpleNamespace(windows=WindowLog(LakePaths(str(tmp_path))))


def compacted(lo: int, hi: int, **detail: object) -> WindowEvent:
    return WindowEvent("compact", lo, hi, "done", 1, 0.0, "run", "sql", detail=detail)


def test_convert_seals_only_what_compact_derived_for_its_mode(ctx: Any) -> None:
    # an empty `change` means that nothing changed, not that nobody looked.
    net, ordered = Target(mode="atomic"), Target(mode="ordered")
    ctx.windows.record(compacted(10, 30, ordered=False))
    for target in (net, ordered):
        with pytest.raises(CheckpointConflict, match="compact has not derived"):
            convert._require_compacted(ctx, BOUNDS, target)
    ctx.windows.record(compacted(10, 20, ordered=True))
    convert._require_compacted(ctx, BOUNDS, ordered)
    with pytest.raises(CheckpointConflict, match="run compact again"):
        convert._require_compacted(ctx, BOUNDS, net)
    ctx.windows.record(compacted(10, 20, ordered=False))
    convert._require_compacted(ctx, BOUNDS, net)


def test_finalize_takes_what_was_sealed_last_though_it_was_sealed_before(
    ctx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    #
    first = ApplyManifest("r", "sql", 1, 10, 20, "c", "safe", "d", "ch", "st", 1, 4, 9, ("10-20",))
    second = replace(first, statement="other")
    for manifest in (first, second, first):
        sealed = WindowEvent("convert", 10, 20, "done", 1, 0.0, "run", "sql", manifest=manifest.to_json())
        ctx.windows.record(sealed)
    monkeypatch.setattr(finalize, "target_position", lambda *_: SimpleNamespace(opened=None))
    assert finalize._manifest(ctx, BOUNDS) == first
    opened = SimpleNamespace(opened=SimpleNamespace(manifest=second.digest()))
    monkeypatch.setattr(finalize, "target_position", lambda *_: opened)
    assert finalize._manifest(ctx, BOUNDS) == second

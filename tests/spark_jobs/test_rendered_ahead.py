"""Tasks of compact also render what they derive, where a job is dear; convert uses it if it would render the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlsink import LandedShop, Sink
from support.engines import HostileEngine
from support.mariadb import MariaDb

from binlake.errors import SchemaError
from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.shared.render import Renderer
from binlake.spark_jobs.stages import compact, convert, finalize, merge

pytestmark = pytest.mark.mariadb


def _compact(sink: Sink, bounds: Bounds) -> tuple[StageResult, Bounds]:
    """(its result for the window as the runner passes it, the sink's window)."""
    done = compact.run(sink.ctx, bounds, merge.run(sink.ctx, bounds).derived)
    return done, Bounds(done.lo, done.hi)


def _use(monkeypatch: pytest.MonkeyPatch) -> list[HostileEngine]:
    """Let hostile tasks run the stages; one engine for each time that a stage asks."""
    made: list[HostileEngine] = []

    def choose(*_: Any) -> HostileEngine:
        made.append(HostileEngine(Random(len(made))))
        return made[-1]

    monkeypatch.setattr(StageContext, "choose_engine", choose)
    return made


def test_rendered_with_net_changes_the_statements_are_the_same_and_take_no_other_tasks(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # 34
    sink, engines, used = Sink(None, tmp_path, mariadb, landed=landed_shop(3)), _use(monkeypatch), 0
    for bounds in sink.windows:
        compacted, window = _compact(sink, bounds)
        given = compacted.derived
        with monkeypatch.context() as patch:
            patch.setattr(StageContext, "choose_engine", lambda *_: LocalEngine())
            alone = convert.derive_ahead(sink.ctx, replace(given, ahead=None))
        engines.clear()
        converted = convert.run(sink.ctx, window, given)
        assert converted.derived.statements.compute_digest() == alone.statements.compute_digest()
        assert converted.derived.change == alone.change
        if given.net.sizes:
            assert given.ahead is not None
            assert sum(engine.tasks for engine in engines) == 0
            used += 1
        finalize.run(sink.ctx, window)
        assert sink.target() == sink.model(window.hi)
    assert used


def test_statements_of_another_form_are_not_used(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # 34
    sink, engines = Sink(None, tmp_path, mariadb, landed=landed_shop(3)), _use(monkeypatch)
    given = _compact(sink, sink.windows[0])[0].derived
    assert given.ahead is not None
    other = "plain" if given.position.forms == "safe" else "safe"
    for position in (replace(given.position, forms=other), replace(given.position, max_packet=1 << 16)):
        engines.clear()
        asked = replace(given, position=position)
        found = convert.derive_ahead(sink.ctx, asked).statements.compute_digest()
        assert sum(engine.tasks for engine in engines) > 0
        assert found == convert.derive_ahead(sink.ctx, replace(asked, ahead=None)).statements.compute_digest()


def test_a_group_that_cannot_be_rendered_fails_in_convert(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # 34
    sink, _ = Sink(None, tmp_path, mariadb, landed=landed_shop(3)), _use(monkeypatch)

    def refuse(*_: Any) -> Any:
        raise SchemaError("this row cannot be rendered")

    monkeypatch.setattr(Renderer, "__call__", refuse)
    compacted, window = _compact(sink, sink.windows[0])
    assert (compacted.state, compacted.derived.ahead) == ("done", None)
    with pytest.raises(SchemaError, match="cannot be rendered"):
        convert.run(sink.ctx, window, compacted.derived)


def test_a_stage_that_runs_alone_renders_nothing_ahead(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # 34
    sink, _ = Sink(None, tmp_path, mariadb, landed=landed_shop(3)), _use(monkeypatch)
    assert compact.run(sink.ctx, sink.windows[0]).derived.ahead is None

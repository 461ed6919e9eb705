"""Mirrors apply the net changes that compact has derived, if their tables and segments are the same."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from mirrored import read_mirrors
from sqlsink import LandedShop, Sink
from support.engines import HostileEngine
from support.mariadb import MariaDb

from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.shared import netchange
from binlake.spark_jobs.shared.netchange import WindowNetChange
from binlake.spark_jobs.stages import mirror

pytestmark = pytest.mark.mariadb


@pytest.mark.parametrize(
    "hostile", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["in this process", "by hostile tasks"]
)
def test_mirrors_of_what_compact_derived_equal_the_source(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop, monkeypatch: pytest.MonkeyPatch, hostile: bool
) -> None:  # 34
    sink = Sink(None, tmp_path, mariadb, landed=landed_shop(3))
    if hostile:
        monkeypatch.setattr(StageContext, "choose_engine", lambda *_: HostileEngine(Random(3)))
    derived: list[int] = []
    prepare = WindowNetChange.prepare

    def count(net: WindowNetChange, *places: Any) -> Any:
        derived.append(len(net.cells))
        return prepare(net, *places)

    has_cuts = []
    for bounds in sink.windows:
        compacted, *_ = sink.apply(bounds)
        has_cuts.append(bool(compacted.derived.window.cuts))
        derived.clear()
        with monkeypatch.context() as patch:
            patch.setattr(WindowNetChange, "prepare", count)
            done = mirror.run(sink.ctx, bounds, compacted.derived)
        assert (done.state, done.rows > 0) == ("done", True)
        assert read_mirrors(sink.ctx) == sink.model(bounds.hi)
        # At the target a DDL opens a segment for all tables, in the mirrors only for the tables that it concerns.
        assert bool(derived) == has_cuts[-1]
    assert len(set(has_cuts)) == 2


@pytest.mark.parametrize(
    "most", [pytest.param(32, marks=pytest.mark.soak, id="few places"), pytest.param(0, id="many places")]
)
def test_mirrors_read_their_rows_where_compact_wrote_them(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:  # 34
    sink, engines = Sink(None, tmp_path, mariadb, landed=landed_shop(3)), list[HostileEngine]()

    def choose(*_: Any) -> HostileEngine:
        engines.append(HostileEngine(Random(3)))
        return engines[-1]

    monkeypatch.setattr(StageContext, "choose_engine", choose)
    monkeypatch.setattr(netchange, "MOST_PLACES", most)
    # The files have several row groups for a table.
    monkeypatch.setattr(netchange, "_GROUP_ROWS", 3)
    whole = 0
    for bounds in sink.windows:
        compacted, *_ = sink.apply(bounds)
        engines.clear()
        mirror.run(sink.ctx, bounds, compacted.derived)
        if not compacted.derived.window.cuts:
            # Rows of many tables are brought together by tasks.
            assert (sum(engine.tasks for engine in engines) > 0) == (most == 0)
            whole += 1
        assert read_mirrors(sink.ctx) == sink.model(bounds.hi)
    assert whole


def test_net_changes_of_another_window_are_not_used(
    mariadb: MariaDb, tmp_path: Path, landed_shop: LandedShop
) -> None:  # 34
    sink = Sink(None, tmp_path, mariadb, landed=landed_shop(3))
    first, second, _ = sink.windows
    compacted, *_ = sink.apply(first)
    mirror.run(sink.ctx, second, compacted.derived)
    assert read_mirrors(sink.ctx) == sink.model(second.hi)

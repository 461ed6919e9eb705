"""A window that land cuts is continued in pieces: the next piece lands while the previous one is in the sinks."""

from __future__ import annotations

import argparse
import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from binlake.config import Replication
from binlake.config.model import WindowSection
from binlake.errors import BinlakeError, LeaseHeld, Permanent, Transient
from binlake.pipeline import FEEDS, MIRROR, SQL, Sink
from binlake.rows.schema import SchemaState
from binlake.spark_jobs.job import runner
from binlake.spark_jobs.job.context import PIECE_BYTES, StageContext, build_session_factory
from binlake.spark_jobs.job.pieces import PIECES, Ahead, CannotDeriveAhead, DerivedAhead, MergedWindow
from binlake.spark_jobs.job.results import BYTES, CUT, Bounds, SparkNeeded, StageResult
from binlake.spark_jobs.stages import mirror
from binlake.window.derived import Merged

PLANNED = 30
MOST_BYTES = 900
WAIT_S = 60.0
NOTHING = Merged(0, 0, True, ())
SCHEMAS = SchemaState(), SchemaState()
Act = Callable[[str, Bounds], None]


@dataclass(frozen=True)
class Derived:
    """What the stage `name` hands on of the window that begins at `lo`, and what it was given."""

    name: str
    lo: int
    given: Any


class WithoutLake(StageContext):
    """A context whose stages look at no lake."""

    def begin_chain(self) -> StageContext:
        return self

    def begin_stage(self, *_: object) -> StageContext:
        return self


def context(*feeds: str, sql: bool = True, mirror: bool = False) -> StageContext:
    sinks: list[Sink] = [replace(SQL, stages=SQL.stages[:3])] * sql + [MIRROR] * mirror
    sinks += [FEEDS.bind(feed) for feed in feeds]
    window = WindowSection(max_bytes=MOST_BYTES)
    replication = cast("Replication", SimpleNamespace(name="orders", list_sinks=lambda: sinks, window=window))
    return WithoutLake(replication, "run", lambda: pytest.fail("no Spark is needed"))


class Stages:
    """Stands for the stages: each land covers `piece` commit_ts; `act` may wait or raise when a stage begins."""

    def __init__(self, piece: int, act: Act = lambda *_: None) -> None:
        self.piece, self.act = piece, act
        self.bytes: Callable[[int], int] = lambda _: 0
        self.plans, self.merged = [Bounds(0, PLANNED)], NOTHING
        self.sink_window, self.applied = PLANNED, 0
        self.opened: Bounds | None = None
        self.supposed: list[int] = []
        self.on_end: Callable[[str, int], object] = lambda *_: None
        self.done: list[tuple[str, int, int]] = []

    def __call__(
        self, name: str, _: Any, bounds: Bounds | None = None, *, feed: str = "", given: Any = None, **__: Any
    ) -> StageResult:
        if name == "plan" and not self.plans:
            return StageResult(name, "waiting", self.applied, self.applied)
        own = bounds or self.plans.pop(0)
        if name == "compact":
            own = self.opened or Bounds(max(own.lo, self.applied), own.hi)
        name = f"{name}-{feed}" if feed else name
        self.act(name, own)
        most = {"land": self.piece, "compact": self.sink_window}.get(name, PLANNED)
        hi = min(own.hi, own.lo + most)
        detail: dict[str, Any] = {CUT: True} if name == "land" and hi < own.hi else {}
        detail |= {"feed": feed} if feed else {}
        detail |= {BYTES: self.bytes(own.lo)} if name == "land" else {}
        self.done.append((name, own.lo, hi))
        if name == "finalize":
            self.applied, self.opened = hi, None
        self.on_end(name, own.lo)
        derived = MergedWindow(own, self.merged, (), SCHEMAS) if name == "merge" else Derived(name, own.lo, given)
        return StageResult(name, "ready" if name == "plan" else "done", own.lo, hi, detail=detail, derived=derived)

    def of(self, name: str) -> list[tuple[int, int]]:
        return [(lo, hi) for stage, lo, hi in self.done if stage == name]


def run(
    monkeypatch: pytest.MonkeyPatch, stages: Stages, *feeds: str, sql: bool = True, mirror: bool = False
) -> list[StageResult]:
    class AheadByStages(Ahead):
        """Derives ahead by `stages`, without a target."""

        def _find_position_after(self, window: Bounds) -> Any:
            stages.supposed.append(window.hi)
            return window.hi

        def _derive(self, position: Any, wait_for_next: Callable[[], MergedWindow]) -> DerivedAhead | None:
            try:
                merged = wait_for_next()
            except CannotDeriveAhead:
                return None
            assert position == merged.bounds.lo
            return DerivedAhead(merged, position, stages("ahead", None, merged.bounds))

    monkeypatch.setattr(runner, "run_stage", stages)
    monkeypatch.setattr(runner, "Ahead", AheadByStages)
    return runner.run_window(context(*feeds, sql=sql, mirror=mirror))


def failing(stage: str, error: Exception, lo: int = 10) -> Act:
    def act(name: str, bounds: Bounds) -> None:
        if (name, bounds.lo) == (stage, lo):
            raise error

    return act


def test_uncut_window_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(piece=PLANNED)
    found = run(monkeypatch, stages)
    assert [result.stage for result in found] == ["plan", "land", "merge", "compact", "convert", "finalize"]


def test_pieces_cover_the_planned_window_and_each_passes_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(piece=12)
    found = run(monkeypatch, stages)
    tiles = [(0, 12), (12, 24), (24, 30)]
    assert [stages.of(name) for name in ("land", "merge", "compact", "convert", "finalize")] == [tiles] * 5
    assert stages.of("plan") == [(0, PLANNED)]
    assert [(result.lo, result.hi) for result in found if result.stage == "finalize"] == tiles


OF_LOAD = Merged(5, 0, True, (), 5)
TWO_PLANS = [Bounds(0, PLANNED), Bounds(PLANNED, 2 * PLANNED)]


def test_run_continues_amid_a_full_load_with_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the target waits at the end of each window for the first piece of the next one.
    stages, landed = Stages(piece=PLANNED), threading.Event()
    stages.plans, stages.merged, stages.bytes = [*TWO_PLANS], OF_LOAD, lambda _: MOST_BYTES
    stages.sink_window = 2 * PLANNED

    def act(name: str, bounds: Bounds) -> None:
        if name == "finalize" and bounds.lo == 0:
            assert landed.wait(WAIT_S)
        if name == "merge" and bounds.lo == PLANNED:
            landed.set()

    stages.act = act
    found = run(monkeypatch, stages)
    tiles = [(0, PLANNED), (PLANNED, 2 * PLANNED)]
    assert [stages.of(name) for name in ("plan", "land", "finalize")] == [tiles] * 3
    assert stages.of("ahead") == tiles[1:]
    # The plan that found nothing more is no result.
    assert [result.stage for result in found].count("plan") == 2


@pytest.mark.parametrize(
    ("merged", "size", "run_s"),
    [(Merged(5, 0, True, (), 4), MOST_BYTES, 600.0), (NOTHING, MOST_BYTES, 600.0),
     (OF_LOAD, MOST_BYTES // 8, 600.0), (OF_LOAD, MOST_BYTES, -1.0)],
    ids=["rows of the log too", "no rows", "a small piece", "a long run"],
)  # fmt: skip
def test_other_windows_end_where_plan_has_proposed(
    monkeypatch: pytest.MonkeyPatch, merged: Merged, size: int, run_s: float
) -> None:
    stages = Stages(piece=PLANNED)
    stages.plans, stages.merged, stages.bytes = [*TWO_PLANS], merged, lambda _: size
    monkeypatch.setattr(runner, "LOAD_S", run_s)
    run(monkeypatch, stages)
    assert stages.of("land") == [(0, PLANNED)]


def test_next_piece_lands_while_the_previous_one_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    second_landed, first_applied = threading.Event(), threading.Event()

    def act(name: str, bounds: Bounds) -> None:
        if (name, bounds.lo) == ("finalize", 0):
            assert second_landed.wait(WAIT_S)
            first_applied.set()
        if (name, bounds.lo) == ("merge", 15):
            assert not first_applied.is_set()
            second_landed.set()

    stages = Stages(15, act)
    run(monkeypatch, stages)
    assert stages.of("finalize") == [(0, 15), (15, 30)]


def test_at_most_two_pieces_land_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[int] = []
    stages = Stages(5)
    stages.act = lambda *_: ahead.append(len(stages.of("land")) - len(stages.of("finalize")))
    run(monkeypatch, stages)
    assert len(stages.of("land")) == 6
    assert max(ahead) <= 3


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (9, 1, 1, 9, 9, 1), (0, 0, 0, 1, 0, 0), (2, 1, 2, 2, 1, 1)])
def test_bytes_of_pieces_in_flight_stay_within_the_budget(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    # U-06: a piece counts, at its limit until it has landed, until its sinks have ended. A huge transaction is noticed
    # when it lands: the next piece waits for it.
    held: dict[int, int] = {}
    begun: list[tuple[int, int]] = []
    lock = threading.Lock()

    def act(name: str, bounds: Bounds) -> None:
        with lock:
            if name == "land":
                held[bounds.lo] = MOST_BYTES
                begun.append((sum(held.values()), len(held)))

    def end(name: str, lo: int) -> None:
        with lock:
            if name == "land":
                held[lo] = sizes[lo // 5] * MOST_BYTES
            elif name == "finalize":
                del held[lo]

    stages = Stages(5, act)
    stages.bytes, stages.on_end = lambda lo: sizes[lo // 5] * MOST_BYTES, end
    run(monkeypatch, stages)
    assert len(begun) == len(stages.of("finalize")) == 6
    assert [(size, pieces) for size, pieces in begun if size > PIECES * MOST_BYTES and pieces > 1] == []


@pytest.mark.parametrize("where", ["finalize", "land"])
def test_failure_ends_a_piece_that_waits_for_room(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    stages = Stages(10, failing(where, Transient("it fails"), 10))
    stages.bytes = lambda _: PIECES * MOST_BYTES
    with pytest.raises(Transient, match="it fails"):
        run(monkeypatch, stages)
    assert stages.of("finalize") == [(0, 10)]
    assert (20, 30) not in stages.of("land")


def test_next_piece_is_derived_and_the_one_after_lands_while_a_piece_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derived, landed = threading.Event(), threading.Event()

    def act(name: str, bounds: Bounds) -> None:
        if (name, bounds.lo) == ("finalize", 0):
            assert derived.wait(WAIT_S)
            assert landed.wait(WAIT_S)
        if (name, bounds.lo) == ("ahead", 10):
            derived.set()
        if (name, bounds.lo) == ("merge", 20):
            landed.set()

    stages = Stages(10, act)
    run(monkeypatch, stages)
    assert stages.of("ahead") == stages.of("finalize")[1:] == [(10, 20), (20, 30)]


def test_piece_is_derived_ahead_before_its_stages_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    is_applied, is_compacted = threading.Event(), threading.Event()

    def act(name: str, bounds: Bounds) -> None:
        if (name, bounds.lo) == ("ahead", 10):
            assert is_applied.wait(WAIT_S)
            # Without this rule, compact would begin at once.
            assert not is_compacted.wait(0.3)
        if (name, bounds.lo) == ("compact", 10):
            is_compacted.set()

    stages = Stages(10, act)
    stages.on_end = lambda name, lo: is_applied.set() if (name, lo) == ("finalize", 0) else None
    run(monkeypatch, stages)
    order = [(name, lo) for name, lo, _ in stages.done if name in ("ahead", "compact")]
    assert order == [("compact", 0), ("ahead", 10), ("compact", 10), ("ahead", 20), ("compact", 20)]


def test_next_piece_is_derived_after_the_last_sink_window_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    # The SQL sink's windows may end before the piece: at a stop point, or where a segment has too many rows.
    stages = Stages(10)
    stages.sink_window = 5
    run(monkeypatch, stages)
    assert stages.of("finalize") == [(lo, lo + 5) for lo in range(0, PLANNED, 5)]
    assert stages.of("ahead") == [(10, 20), (20, 30)]
    assert stages.supposed == [10, 20]


def test_run_that_ends_the_window_of_an_earlier_run_applies_its_own_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # found by drawn faults of the storage
    stages = Stages(piece=PLANNED)
    stages.opened = Bounds(-9, 0)
    run(monkeypatch, stages)
    assert stages.of("finalize") == [(-9, 0), (0, PLANNED)]


def test_run_whose_sink_gets_no_further_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(piece=PLANNED)
    stages.sink_window = 0
    run(monkeypatch, stages)
    assert stages.of("finalize") == [(0, 0), (0, 0)]


def test_each_stage_is_given_what_the_one_before_it_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    # 34: no stage reads again what this process has; the sinks share what merge derived.
    given: dict[tuple[str, int], Any] = {}

    class Recording(Stages):
        def __call__(self, name: str, *args: Any, **options: Any) -> StageResult:
            result = super().__call__(name, *args, **options)
            given[result.stage, result.lo] = options.get("given")
            return result

    results = run(monkeypatch, Recording(10), "a")
    for lo in (0, 10, 20):
        assert given["merge", lo] == Derived("land", lo, None)
        merged = given["encode-a", lo]
        assert merged == MergedWindow(Bounds(lo, lo + 10), NOTHING, (), SCHEMAS)
        ahead = given["compact", lo]
        # All but the first window were derived while the one before was applied.
        assert ahead == merged if lo == 0 else (ahead.merged, ahead.position) == (merged, lo)
        assert given["convert", lo] == Derived("compact", lo, ahead)
        assert given["finalize", lo] == Derived("convert", lo, given["convert", lo])
        assert given["publish-a", lo] == Derived("encode-a", lo, merged)
    # What is returned holds no rows.
    assert [result.derived for result in results] == [None] * len(results)


def test_nothing_is_derived_ahead_without_a_sql_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(10)
    run(monkeypatch, stages, "a", sql=False)
    assert len(stages.of("publish-a")) == 3
    assert stages.of("ahead") == []


@pytest.mark.parametrize(("where", "error"), [("land", Transient), ("finalize", Permanent)])
def test_failure_ends_the_run_after_the_work_that_had_started(
    monkeypatch: pytest.MonkeyPatch, where: str, error: type[BinlakeError]
) -> None:
    third = threading.Event()

    def act(name: str, bounds: Bounds) -> None:
        if (name, bounds.lo) == (where, 10):
            # The third piece was given to its thread before; only what has begun there is finished.
            assert where == "land" or third.wait(30)
            raise error("this stage fails")

    stages = Stages(10, act)
    stages.on_end = lambda name, lo: third.set() if (name, lo) == ("merge", 20) else None
    with pytest.raises(error, match="this stage fails"):
        run(monkeypatch, stages)
    assert stages.of("finalize") == [(0, 10)]
    # Pieces that landed ahead stay landed; no new work starts after a failure.
    assert stages.of("merge") == ([(0, 10)] if where == "land" else [(0, 10), (10, 20), (20, 30)])


def test_failed_feed_stops_nothing_else_and_pauses_until_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # S2-39, DESIGN 3.12
    stages = Stages(10, failing("publish-a", Permanent("the registry refuses it")))
    found = run(monkeypatch, stages, "a", "b")
    tiles = [(0, 10), (10, 20), (20, 30)]
    assert [stages.of(name) for name in ("merge", "finalize", "publish-b")] == [tiles] * 3
    assert (stages.of("encode-a"), stages.of("publish-a")) == (tiles[:2], tiles[:1])
    (failed,) = (result for result in found if result.state == "failed")
    assert (failed.stage, failed.lo, failed.hi) == ("publish", 10, 20)
    why = {"feed_state": "error", "error": "Permanent", "reason": "the registry refuses it"}
    assert failed.detail == {"feed": "a", **why}


def test_feed_published_by_another_process_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Stages(PLANNED, failing("encode-a", LeaseHeld("pid 7"), 0)), "a")
    assert [result.state for result in found if result.detail.get("feed")] == ["waiting"]


def test_failure_of_the_only_sink_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(10, failing("publish-a", Transient("no broker answers")))
    with pytest.raises(Transient, match="no broker answers"):
        run(monkeypatch, stages, "a", sql=False)
    assert stages.of("publish-a") == [(0, 10)]


def test_feed_that_needs_spark_ends_a_process_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SparkNeeded):
        run(monkeypatch, Stages(PLANNED, failing("encode-a", SparkNeeded(), 0)), "a")


@pytest.mark.parametrize(
    ("configured", "in_pieces", "most"),
    [(None, True, PIECE_BYTES), (None, False, 0), (0, True, 0), (900, True, 900), (900, False, 900)],
)
def test_size_limit_of_a_window_depends_on_pieces_and_configuration(
    configured: int | None, in_pieces: bool, most: int
) -> None:
    window = {} if configured is None else {"max-bytes": configured}
    settings = {"name": "orders", "source": {"pd-urls": ["http://p:1"]}, "lake": {"path": "/l"}, "window": window}
    replication = Replication.model_validate(settings)
    ctx = StageContext(replication, "run", lambda: pytest.fail("no Spark is needed"), in_pieces=in_pieces)
    assert ctx.most_bytes == most


def test_missing_spark_is_not_a_failure_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is recorded: the caller starts the process again with Spark."""
    no_session = build_session_factory("test", argparse.Namespace(without_spark=True, spark_later=False))
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(run=lambda *_: no_session()))
    replication = Replication.model_validate({"name": "orders", "source": {}, "lake": {"path": "/lake"}})
    ctx = WithoutLake(replication, "run", lambda: pytest.fail("the stage asks by itself"))
    with pytest.raises(SparkNeeded, match="--without-spark"):
        runner.run_stage("merge", ctx, Bounds(0, 1))


@pytest.mark.parametrize("sql", [True, False])
def test_mirror_is_given_what_compact_derived_of_each_piece(monkeypatch: pytest.MonkeyPatch, sql: bool) -> None:
    stages, derived = Stages(piece=12), list[Any]()
    call = Stages.__call__

    def noting(self: Stages, *args: Any, **options: Any) -> StageResult:
        derived.append((result := call(self, *args, **options)).derived)
        return result

    monkeypatch.setattr(Stages, "__call__", noting)
    run(monkeypatch, stages, sql=sql, mirror=True)
    given = [one.given for one in derived if isinstance(one, Derived) and one.name == "mirror"]
    assert [one.lo if isinstance(one, Derived) else one.bounds.lo for one in given] == [0, 12, 24]
    assert {getattr(one, "name", "merge") for one in given} == {"compact" if sql else "merge"}


def test_mirror_derives_by_itself_if_compact_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(PLANNED, failing("compact", Transient("no target"), lo=0))
    with pytest.raises(Transient):
        run(monkeypatch, stages, mirror=True)
    assert stages.of("mirror") == [(0, PLANNED)]


@dataclass(frozen=True)
class Held:
    """Stands for net changes that mirrors can take together."""

    bounds: Bounds
    bytes: int = 1

    def join(self, following: Held) -> Held:
        return Held(Bounds(self.bounds.lo, following.bounds.hi))


def hold_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mirror, "gather", lambda _, derived: derived and Held(Bounds(derived.lo, min(derived.lo + 12, PLANNED)))
    )


def test_mirrors_of_a_run_that_is_behind_take_pieces_together(monkeypatch: pytest.MonkeyPatch) -> None:  # 34
    hold_pieces(monkeypatch)
    stages = Stages(piece=12)
    found = run(monkeypatch, stages, mirror=True)
    assert stages.of("mirror") == [(0, PLANNED)]
    assert [(result.lo, result.hi) for result in found if result.stage == "mirror"] == [(0, PLANNED)]
    assert stages.of("finalize") == [(0, 12), (12, 24), (24, PLANNED)]


@pytest.mark.parametrize(("stage", "reached"), [("finalize", 24), ("land", 12)])
def test_pieces_that_mirrors_hold_are_applied_if_the_run_fails(
    monkeypatch: pytest.MonkeyPatch, stage: str, reached: int
) -> None:  # invariant 12: a target that is down stops no mirror
    hold_pieces(monkeypatch)
    stages = Stages(12, failing(stage, Transient("it is down"), lo=12))
    with pytest.raises(Transient, match="it is down"):
        run(monkeypatch, stages, mirror=True)
    assert stages.of("mirror") == [(0, reached)]


def test_error_of_a_run_is_raised_even_if_its_mirrors_fail_too(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_pieces(monkeypatch)

    def act(name: str, bounds: Bounds) -> None:
        failing("finalize", Transient("it is down"), lo=12)(name, bounds)
        failing("mirror", Permanent("no mirror"), lo=0)(name, bounds)

    with pytest.raises(Transient, match="it is down"):
        run(monkeypatch, Stages(12, act), mirror=True)

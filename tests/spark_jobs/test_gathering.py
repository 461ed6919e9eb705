"""Which pieces of a run the mirrors take at once."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from binlake.rows.schema import SchemaState
from binlake.spark_jobs.job import pieces
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.pieces import MOST_BYTES, MOST_S, Gathering, MergedWindow
from binlake.window.derived import Merged

MIB = 1 << 20


@dataclass(frozen=True)
class Held:
    bounds: Bounds
    bytes: int

    def join(self, following: Held) -> Held:
        return Held(Bounds(self.bounds.lo, following.bounds.hi), self.bytes + following.bytes)


class Alone(Held):
    """What compact derived of one piece."""


class Run:
    """Pieces of ten commit_ts that come one after the other; `now`: what the clock shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = SimpleNamespace(gather=lambda _, given: given and Held(given.bounds, given.bytes))
        monkeypatch.setattr(pieces.importlib, "import_module", lambda _: module)  # type: ignore[attr-defined]
        self.now, self._at = 0.0, 0
        self._gathering = Gathering(cast("StageContext", None), lambda: self.now)

    def add(self, size: int | None, *, is_followed: bool = True) -> list[tuple[int, int, Any]]:
        bounds = Bounds(self._at, self._at + 10)
        self._at += 10
        merged = MergedWindow(bounds, Merged(1, 0, True, ()), (), (SchemaState(), SchemaState()))
        derived = None if size is None else Alone(bounds, size)
        ready = self._gathering.add(merged, derived, is_followed=is_followed)
        return [(one.lo, one.hi, type(given)) for one, given in ready]

    def take(self) -> list[tuple[int, int]]:
        return [(one.lo, one.hi) for one, _ in self._gathering.take()]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_last_piece_is_applied_at_once_with_those_before_it(run: Run) -> None:
    assert run.add(MIB) == []
    assert run.add(MIB) == []
    assert run.add(MIB, is_followed=False) == [(0, 30, Held)]
    assert run.take() == []


def test_a_run_that_is_not_behind_holds_nothing(run: Run) -> None:
    assert run.add(MIB, is_followed=False) == [(0, 10, Alone)]
    assert run.add(None, is_followed=False) == [(10, 20, MergedWindow)]


def test_no_more_bytes_are_held_than_allowed(run: Run) -> None:
    assert run.add(MOST_BYTES // 2) == []
    # Another one like it would exceed the limit.
    assert run.add(MOST_BYTES // 2) == [(0, 20, Held)]
    assert run.add(MOST_BYTES // 2 + 1) == [(20, 30, Alone)]
    assert run.add(MIB) == []


def test_no_piece_is_held_longer_than_allowed(run: Run) -> None:
    assert run.add(MIB) == []
    run.now = MOST_S - 1
    assert run.add(MIB) == []
    run.now = MOST_S
    assert run.add(MIB) == [(0, 30, Held)]
    assert run.add(MIB) == []
    run.now = MOST_S + 1
    assert run.add(MIB) == []


def test_a_piece_that_cannot_be_joined_follows_what_is_held(run: Run) -> None:
    assert run.add(MIB) == []
    assert run.add(None) == [(0, 10, Held), (10, 20, MergedWindow)]
    assert run.add(MIB) == []
    assert run.take() == [(20, 30)]

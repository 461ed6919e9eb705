"""The table `window`: one event per finished stage of a window; the sealed manifests live here and nowhere else.

A window is landed when its `land` event exists. Landed windows tile: the hi of one is the lo of the next.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds

from binlake.errors import ImmutableWindow
from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths
from binlake.lake.tables import WINDOW
from binlake.pipeline import ENDED
from binlake.window.manifest import ApplyManifest, OfWindow, WindowManifest

_TOLD = tuple(name for name in WINDOW.column_names() if name != "manifest")


@dataclass(frozen=True)
class WindowEvent(OfWindow):
    """One stage of one window came to an end: `state` done, already, blocked, waiting, skipped; `rows`; `seconds`.

    Two states are marks: `started` before the first write of a sink, `ready` where a plan ends a time of being blocked.
    """

    stage: str
    lo: int
    hi: int
    state: str
    rows: int = 0
    seconds: float = 0.0
    run_id: str = ""
    sink: str = ""
    blocked_by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    manifest: str = ""


class WindowLog:
    """Reads and extends the table `window` of one lake. Reads cost what they return, not what the lake has lived."""

    def __init__(self, paths: LakePaths) -> None:
        self.paths = paths
        self._table = ControlTable(paths.table("window"), WINDOW)

    def exists(self) -> bool:
        """True when anything of this lake was ever recorded."""
        return self._table.exists()

    def record(self, event: WindowEvent) -> None:
        """Append one event; durable when it returns."""
        row = {name: getattr(event, name) for name in WINDOW.column_names() if name not in ("at_ms", "detail")}
        detail = json.dumps(dict(event.detail), sort_keys=True, default=str)
        self._table.append([{**row, "detail": detail, "at_ms": time.time_ns() // 1_000_000}])

    def events(
        self,
        run_id: str | None = None,
        limit: int | None = None,
        stage: str | None = None,
        within: tuple[int, int] | None = None,
    ) -> list[dict[str, Any]]:
        """Events in order of time, of one run or stage or of all, without manifests; the last `limit` of them.

        `within` = (lo, hi): those of windows that overlap this range of commit_ts. Without it the whole log is read.
        """
        wanted = {"run_id": run_id, "stage": stage}
        terms = [ds.field(name) == value for name, value in wanted.items() if value is not None]
        if within is not None:
            terms += [ds.field("lo") < within[1], ds.field("hi") > within[0]]
        where = functools.reduce(operator.and_, terms) if terms else None
        found = self._table.arrow(_TOLD, where).sort_by("at_ms")
        rows: list[dict[str, Any]] = found.slice(max(found.num_rows - limit, 0) if limit else 0).to_pylist()
        return rows

    def done(self, stage: str, within: tuple[int, int]) -> list[dict[str, Any]]:
        """As `events`, those by which `stage` ended with the state done, with what it sealed in `manifest`."""
        where = _done(stage) & (ds.field("lo") < within[1]) & (ds.field("hi") > within[0])
        rows: list[dict[str, Any]] = self._table.arrow((*_TOLD, "manifest"), where).sort_by("at_ms").to_pylist()
        return rows

    def covering(self, moments: Iterable[int], stages: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """As `events`, of the windows that one of these commit_ts lies in; of `stages` alone when they are given."""
        terms = [(ds.field("lo") < ts) & (ds.field("hi") >= ts) for ts in sorted(set(moments))]
        if not terms:
            return []
        where = functools.reduce(operator.or_, terms)
        if stages is not None:
            where &= ds.field("stage").isin(list(stages))
        rows: list[dict[str, Any]] = self._table.arrow(_TOLD, where).sort_by("at_ms").to_pylist()
        return rows

    def newest(
        self, stages: Sequence[str], count: int, upto: int | None = None, states: Sequence[str] | None = ENDED
    ) -> list[dict[str, Any]]:
        """The `count` events of `stages` in one of `states` (None: any) that end last, the last first; hi <= `upto`."""
        where = ds.field("stage").isin(list(stages))
        if states is not None:
            where &= ds.field("state").isin(list(states))
        if upto is not None:
            where &= ds.field("hi") <= upto
        return self._table.newest(_TOLD, "hi", count, where)

    def last_said(self, stages: Sequence[str]) -> dict[str, Any] | None:
        """The event of `stages` that was recorded last, whatever its state."""
        found = self.recorded_last(stages, 1)
        return found[0] if found else None

    def recorded_last(
        self, stages: Sequence[str], count: int, states: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """The `count` events of `stages` in one of `states` (None: any) that were recorded last, the last first."""
        where = ds.field("stage").isin(list(stages))
        if states is not None:
            where &= ds.field("state").isin(list(states))
        return self._table.newest(_TOLD, "at_ms", count, where)

    def landed(self, within: tuple[int, int] | None = None) -> list[tuple[int, int]]:
        """(lo, hi) of the landed windows, ascending: all, or those that overlap the range `within` = (lo, hi).

        Raises ImmutableWindow when they do not tile.
        """
        where = _done("land")
        if within is not None:
            where &= (ds.field("lo") < within[1]) & (ds.field("hi") > within[0])
        found = sorted({(row["lo"], row["hi"]) for row in self._table.rows(("lo", "hi"), where)})
        for (_, hi), (lo, _) in itertools.pairwise(found):
            if hi != lo:
                raise ImmutableWindow(
                    f"landed windows are not contiguous: one ends at {hi}, the next starts at {lo}",
                    hint="the table `window` was written by hand or by two lakes; restore it",
                )
        return found

    def landed_range(self) -> tuple[int, int] | None:
        """(lo of the first, hi of the last) landed window; None for an empty lake. Raises ImmutableWindow."""
        first, last = self.start_ts(), self.landed_ts()
        if last is None:
            return None
        if first is None or not self.landed((first, first + 1)):
            # A lake from before the event `start`.
            first = self.landed()[0][0]
        return first, last

    def not_merged(self, until: int) -> list[WindowManifest]:
        """The landed windows that end at or below `until` and were never merged, ascending.

        Merge goes from the oldest to the newest and records each, so all at or below its greatest hi are merged.
        """
        start = self.reached("merge")
        if start is None:
            landed = self.landed_range()
            start = until if landed is None else landed[0]
        left = [window for window in self.landed((start, until)) if window[1] <= until] if start < until else []
        return [manifest for window in left if (manifest := self.manifest(*window)) is not None]

    def landed_ts(self) -> int | None:
        """The hi of the last landed window; None for an empty lake."""
        return self.reached("land")

    def reached(self, stage: str) -> int | None:
        """The greatest hi that `stage` ended with the state done; None when it never did."""
        return self._table.greatest("hi", _done(stage))

    def silent_since(self) -> int | None:
        """The hi of the last landed window that had a transaction, of the first one when none had; None for no window.

        Not the start of the lake: what was before the first landing was not observed.
        """
        last = self._table.greatest("hi", _done("land") & (ds.field("rows") > 0))
        if last is not None:
            return last
        landed = self.landed_range()
        return None if landed is None else self.landed((landed[0], landed[0] + 1))[0][1]

    def start_ts(self) -> int | None:
        """Where this lake starts, exclusive, fixed by the first plan; None before it."""
        rows = self._table.rows(("lo",), ds.field("stage") == "start")
        return min((row["lo"] for row in rows), default=None)

    def start_option(self) -> str | None:
        """`initial-commit-ts` as it was when the lake began; None before that, or where it was not written down."""
        rows = self._table.rows(("detail",), ds.field("stage") == "start")
        found = (json.loads(row["detail"] or "{}").get("initial_commit_ts") for row in rows)
        return next((text for text in found if text is not None), None)

    def manifest(self, lo: int, hi: int) -> WindowManifest | None:
        """The sealed manifest of the window (lo, hi]; None when it is not landed."""
        texts = self._manifests("land", lo, hi)
        return WindowManifest.from_json(texts[0]) if texts else None

    def manifests(self, lo: int, hi: int) -> list[WindowManifest]:
        """The sealed manifests of the landed windows that overlap (lo, hi]."""
        where = _done("land") & (ds.field("lo") < hi) & (ds.field("hi") > lo)
        return [WindowManifest.from_json(row["manifest"]) for row in self._table.rows(("manifest",), where)]

    def last_landed(self) -> WindowManifest | None:
        """The manifest of the last landed window; None for an empty lake."""
        landed_ts = self.landed_ts()
        if landed_ts is None:
            return None
        texts = self._table.rows(("manifest",), _done("land") & (ds.field("hi") == landed_ts))
        return WindowManifest.from_json(texts[0]["manifest"])

    def apply_manifests(self, lo: int, hi: int) -> list[ApplyManifest]:
        """The apply manifests written for (lo, hi], the newest last; several when the target or its options changed."""
        return [ApplyManifest.from_json(text) for text in self._manifests("convert", lo, hi)]

    def sealed_windows(self, hi: int) -> list[tuple[int, int]]:
        """Windows that the SQL sink sealed and that cover the landed window ending at `hi`, the newest first."""
        where = _done("convert") & (ds.field("lo") < hi) & (ds.field("hi") >= hi)
        rows = sorted(self._table.rows(("lo", "hi", "at_ms"), where), key=lambda row: -row["at_ms"])
        return [(row["lo"], row["hi"]) for row in rows]

    def tidy(self) -> dict[str, int]:
        """As ControlTable.tidy."""
        return self._table.tidy()

    def _manifests(self, stage: str, lo: int, hi: int) -> list[str]:
        where = _done(stage) & (ds.field("lo") == lo) & (ds.field("hi") == hi)
        rows = sorted(self._table.rows(("manifest", "at_ms"), where), key=lambda row: row["at_ms"])
        return [row["manifest"] for row in rows]


def _done(stage: str) -> ds.Expression:
    return (ds.field("stage") == stage) & (ds.field("state") == "done")

"""The table `window`: one event per finished stage of a window. The sealed manifests are stored only there.

A window has landed when its `land` event exists. Landed windows tile: the hi of one is the lo of the next.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow.dataset as ds

from binlake.common.lakecolumns import Window
from binlake.errors import ImmutableWindow
from binlake.lake.control import ControlTable
from binlake.lake.controltables import WINDOW
from binlake.lake.opentable import count_others
from binlake.lake.paths import LakePaths
from binlake.pipeline import ENDED
from binlake.window.events import EventRow
from binlake.window.manifest import ApplyManifest, OfWindow, WindowManifest

_WITHOUT_MANIFEST = tuple(name for name in WINDOW.list_column_names() if name != Window.MANIFEST)


@dataclass(frozen=True)
class WindowEvent(OfWindow):
    """The end of one stage of one window, with `state` done, already, blocked, waiting or skipped.

    Two states are marks: `started` before the first write of a sink, `ready` for the first plan that is not blocked.
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
    """Reads and extends the table `window` of one lake. A read's cost depends on its result, not on the history.

    `pinned`: as of ControlTable.
    """

    def __init__(self, paths: LakePaths, *, pinned: bool = False) -> None:
        self.paths = paths
        self._table = ControlTable(paths.locate_table(WINDOW.name), WINDOW, pinned=pinned)

    def refresh(self) -> None:
        """Let later reads of a pinned log find the present events."""
        self._table.refresh()

    def count_others(self) -> int:
        """How many commits of other processes this one has found in a table in a store."""
        return count_others(self._table.path)

    def exists(self) -> bool:
        """True when anything was ever recorded in this lake."""
        return self._table.exists()

    def record(self, event: WindowEvent) -> None:
        """Append one event. Durable when this returns."""
        self.record_together([event])

    def record_together(self, events: Sequence[WindowEvent]) -> None:
        """Append `events` in one commit: all of them or none. Durable when this returns."""
        if not events:
            return
        now = time.time_ns() // 1_000_000
        self._table.append(
            [
                {**vars(event), Window.DETAIL: json.dumps(dict(event.detail), sort_keys=True, default=str),
                 Window.AT_MS: now}
                for event in events
            ]
        )  # fmt: skip

    def read_events(
        self,
        run_id: str | None = None,
        limit: int | None = None,
        stage: str | None = None,
        within: tuple[int, int] | None = None,
        state: str | None = None,
        *,
        sealed: bool = False,
    ) -> list[EventRow]:
        """The last `limit` events (None: all) of one run, stage and state, each if set, in order of time.

        `within` = (lo, hi): only of windows that overlap this range of commit_ts. Without it the whole log is read.
        `sealed`: include the manifests.
        """
        conditions = {Window.RUN_ID: run_id, Window.STAGE: stage, Window.STATE: state}
        terms = [ds.field(name) == value for name, value in conditions.items() if value is not None]
        terms += [_match_overlap(*within)] if within is not None else []
        where = functools.reduce(operator.and_, terms) if terms else None
        return self._select_events(where, limit, sealed=sealed)

    def read_events_at(self, moments: Iterable[int], stages: Sequence[str] | None = None) -> list[EventRow]:
        """The events of windows that contain one of these commit_ts, only of `stages` if set, in order of time."""
        where = None if stages is None else ds.field(Window.STAGE).isin(list(stages))
        rows = self._table.read_covering(_WITHOUT_MANIFEST, (Window.LO, Window.HI), list(moments), where)
        return cast(list[EventRow], sorted(rows, key=lambda row: row[Window.AT_MS]))

    def read_newest(
        self, stages: Sequence[str], count: int, upto: int | None = None, states: Sequence[str] | None = ENDED
    ) -> list[EventRow]:
        """The `count` events of `stages` in `states` (None: any) with the greatest hi <= `upto`, descending."""
        where = _match_stages(stages, states)
        return self._select_newest(Window.HI, count, where if upto is None else where & (ds.field(Window.HI) <= upto))

    def read_last_event(self, stages: Sequence[str]) -> EventRow | None:
        """The last recorded event of `stages`, whatever its state."""
        events = self.read_last_events(stages, 1)
        return events[0] if events else None

    def read_last_events(
        self,
        stages: Sequence[str] | None,
        count: int,
        states: Sequence[str] | None = None,
        *,
        sink: str | None = None,
    ) -> list[EventRow]:
        """The `count` last recorded events of `stages` (None: all) in one of `states` (None: any), newest first."""
        return self._select_newest(Window.AT_MS, count, _match_sink(_match_stages(stages, states), sink))

    def list_landed(self, within: tuple[int, int] | None = None) -> list[tuple[int, int]]:
        """(lo, hi) of the landed windows, ascending: all, or those that overlap the range `within` = (lo, hi).

        Raises ImmutableWindow when they do not tile.
        """
        where = _match_done("land") if within is None else _match_done("land") & _match_overlap(*within)
        bounds = sorted(
            {(row[Window.LO], row[Window.HI]) for row in self._table.read_rows((Window.LO, Window.HI), where)}
        )
        for (_, hi), (lo, _) in itertools.pairwise(bounds):
            if hi != lo:
                raise ImmutableWindow(
                    f"landed windows are not contiguous: one ends at {hi}, the next starts at {lo}",
                    hint="the table `window` was written by hand or by two lakes; restore it",
                )
        return bounds

    def find_landed_range(self) -> tuple[int, int] | None:
        """(lo of the first, hi of the last) landed window; None for an empty lake. Raises ImmutableWindow."""
        first, last = self.start_ts(), self.find_landed_ts()
        if last is None:
            return None
        if first is None or not self.list_landed((first, first + 1)):
            # This lake was created before the event `start` existed.
            first = self.list_landed()[0][0]
        return first, last

    def list_unmerged(self, until: int) -> list[WindowManifest]:
        """The landed windows that end at or below `until` and are not merged yet, ascending.

        Merge processes windows in order and records each, so all windows up to its greatest hi are merged.
        """
        start = self.find_greatest_hi("merge")
        if start is None:
            landed = self.find_landed_range()
            start = until if landed is None else landed[0]
        left = [window for window in self.list_landed((start, until)) if window[1] <= until] if start < until else []
        return [manifest for window in left if (manifest := self.read_manifest(*window)) is not None]

    def find_landed_ts(self) -> int | None:
        """The hi of the last landed window; None for an empty lake."""
        return self.find_greatest_hi("land")

    def find_greatest_hi(
        self, stage: str, sink: str | None = None, *, since_ms: int = 0, with_rows: bool = False
    ) -> int | None:
        """The greatest hi of a window for which `stage` (of `sink`) is done, or None.

        `since_ms`: only events recorded later than this (Unix ms) count; `with_rows`: only events that count rows.
        """
        where = _match_sink(_match_done(stage), sink)
        if with_rows:
            where &= ds.field(Window.ROWS) > 0
        return self._table.find_greatest(Window.HI, where & (ds.field(Window.AT_MS) > since_ms) if since_ms else where)

    def find_silence_start(self) -> int | None:
        """The hi of the last landed window with a transaction, or of the first window if none had one.

        None without a landed window. It is not the lake's start: the time before the first landing was not observed.
        """
        last = self._table.find_greatest(Window.HI, _match_done("land") & (ds.field(Window.ROWS) > 0))
        if last is not None:
            return last
        landed = self.find_landed_range()
        return None if landed is None else self.list_landed((landed[0], landed[0] + 1))[0][1]

    def start_ts(self) -> int | None:
        """The commit_ts after which this lake starts, fixed by the first plan; None before that."""
        rows = self._table.read_rows((Window.LO,), ds.field(Window.STAGE) == "start")
        return min((row[Window.LO] for row in rows), default=None)

    def start_option(self) -> str | None:
        """`initial-commit-ts` as it was when the lake began; None before that, or if it was not recorded."""
        rows = self._table.read_rows((Window.DETAIL,), ds.field(Window.STAGE) == "start")
        options = (json.loads(row[Window.DETAIL] or "{}").get("initial_commit_ts") for row in rows)
        return next((text for text in options if text is not None), None)

    def read_manifest(self, lo: int, hi: int) -> WindowManifest | None:
        """The sealed manifest of the window (lo, hi]; None if it has not landed."""
        texts = self._select_manifests("land", lo, hi)
        return WindowManifest.from_json(texts[0]) if texts else None

    def read_manifests(self, lo: int, hi: int) -> list[WindowManifest]:
        """The sealed manifests of the landed windows that overlap (lo, hi]."""
        where = _match_done("land") & _match_overlap(lo, hi)
        return [
            WindowManifest.from_json(row[Window.MANIFEST]) for row in self._table.read_rows((Window.MANIFEST,), where)
        ]

    def read_last_manifest(self) -> WindowManifest | None:
        """The manifest of the last landed window; None for an empty lake."""
        landed_ts = self.find_landed_ts()
        if landed_ts is None:
            return None
        texts = self._table.read_rows((Window.MANIFEST,), _match_done("land") & (ds.field(Window.HI) == landed_ts))
        return WindowManifest.from_json(texts[0][Window.MANIFEST])

    def read_apply_manifests(self, lo: int, hi: int) -> list[ApplyManifest]:
        """The apply manifests of (lo, hi], newest last. There are several if the target or its options changed."""
        return [ApplyManifest.from_json(text) for text in self._select_manifests("convert", lo, hi)]

    def list_sealed_windows(self, hi: int) -> list[tuple[int, int]]:
        """The SQL sink's sealed windows that cover the landed window ending at `hi`, newest first."""
        where = _match_done("convert") & (ds.field(Window.LO) < hi) & (ds.field(Window.HI) >= hi)
        rows = sorted(
            self._table.read_rows((Window.LO, Window.HI, Window.AT_MS), where), key=lambda row: -row[Window.AT_MS]
        )
        return [(row[Window.LO], row[Window.HI]) for row in rows]

    def tidy(self) -> dict[str, int]:
        """As ControlTable.tidy."""
        return self._table.tidy()

    def _select_events(
        self, where: ds.Expression | None, limit: int | None = None, *, sealed: bool = False
    ) -> list[EventRow]:
        rows = self._table.read_arrow(None if sealed else _WITHOUT_MANIFEST, where).sort_by(Window.AT_MS)
        events: list[EventRow] = rows.slice(max(rows.num_rows - limit, 0) if limit else 0).to_pylist()
        return events

    def _select_newest(self, by: str, count: int, where: ds.Expression) -> list[EventRow]:
        return cast(list[EventRow], self._table.read_newest(_WITHOUT_MANIFEST, by, count, where))

    def _select_manifests(self, stage: str, lo: int, hi: int) -> list[str]:
        where = _match_done(stage) & (ds.field(Window.LO) == lo) & (ds.field(Window.HI) == hi)
        rows = sorted(self._table.read_rows((Window.MANIFEST, Window.AT_MS), where), key=lambda row: row[Window.AT_MS])
        return [row[Window.MANIFEST] for row in rows]


def _match_overlap(lo: int, hi: int) -> ds.Expression:
    return (ds.field(Window.LO) < hi) & (ds.field(Window.HI) > lo)


def _match_stages(stages: Sequence[str] | None, states: Sequence[str] | None) -> ds.Expression:
    where = ds.field(Window.STAGE).is_valid() if stages is None else ds.field(Window.STAGE).isin(list(stages))
    return where if states is None else where & ds.field(Window.STATE).isin(list(states))


def _match_sink(where: ds.Expression, sink: str | None) -> ds.Expression:
    return where if sink is None else where & (ds.field(Window.SINK) == sink)


def _match_done(stage: str) -> ds.Expression:
    return (ds.field(Window.STAGE) == stage) & (ds.field(Window.STATE) == "done")

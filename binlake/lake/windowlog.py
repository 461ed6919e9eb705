"""The table `window`: one event per finished stage of a window; the sealed manifests live here and nowhere else.

A window is landed when its `land` event exists. Landed windows tile: the hi of one is the lo of the next.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from binlake.errors import ImmutableWindow
from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths
from binlake.window.manifest import ApplyManifest, WindowManifest, window_name

SCHEMA = pa.schema(
    [
        ("lo", pa.int64()),
        ("hi", pa.int64()),
        ("stage", pa.string()),
        ("sink", pa.string()),
        ("state", pa.string()),
        ("rows", pa.int64()),
        ("seconds", pa.float64()),
        ("run_id", pa.string()),
        ("at_ms", pa.int64()),
        ("blocked_by", pa.string()),
        ("detail", pa.string()),
        ("manifest", pa.string()),
    ]
)


@dataclass(frozen=True)
class WindowEvent:
    """One stage of one window came to an end: `state` done, already, blocked, waiting, skipped; `rows`; `seconds`.

    Two states are marks: `started` before a mirror's first write, `ready` where a plan ends a time of being blocked.
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

    @property
    def window(self) -> str:
        """`lo-hi`."""
        return window_name(self.lo, self.hi)


class WindowLog:
    """Reads and extends the table `window` of one lake."""

    def __init__(self, paths: LakePaths) -> None:
        self._table = ControlTable(paths.table("window"), SCHEMA, "Events of windows by stage", ("stage",))

    def record(self, event: WindowEvent) -> None:
        """Append one event; durable when it returns."""
        row = {name: getattr(event, name) for name in SCHEMA.names if name not in ("at_ms", "detail")}
        detail = json.dumps(dict(event.detail), sort_keys=True, default=str)
        self._table.append([{**row, "detail": detail, "at_ms": time.time_ns() // 1_000_000}])

    def events(
        self,
        run_id: str | None = None,
        limit: int | None = None,
        stage: str | None = None,
        within: tuple[int, int] | None = None,
    ) -> list[dict[str, Any]]:
        """Events in order of time, of one run or stage or of all; the last `limit` of them.

        `within` = (lo, hi): those of windows that overlap this range of commit_ts.
        """
        wanted = {"run_id": run_id, "stage": stage}
        terms = [ds.field(name) == value for name, value in wanted.items() if value is not None]
        if within is not None:
            terms += [ds.field("lo") < within[1], ds.field("hi") > within[0]]
        where = functools.reduce(operator.and_, terms) if terms else None
        rows = sorted(self._table.rows(where=where), key=lambda row: row["at_ms"])
        return rows[-limit:] if limit else rows

    def landed(self) -> list[tuple[int, int]]:
        """(lo, hi) of all landed windows, ascending. Raises ImmutableWindow when they do not tile."""
        where = (ds.field("stage") == "land") & (ds.field("state") == "done")
        found = sorted({(row["lo"], row["hi"]) for row in self._table.rows(("lo", "hi"), where)})
        for (_, hi), (lo, _) in itertools.pairwise(found):
            if hi != lo:
                raise ImmutableWindow(
                    f"landed windows do not tile: one ends at {hi}, the next starts at {lo}",
                    hint="the table `window` was written by hand or by two lakes; restore it",
                )
        return found

    def not_merged(self, until: int) -> list[WindowManifest]:
        """The landed windows that end at or below `until` and were never merged, ascending."""
        where = (ds.field("stage") == "merge") & (ds.field("state") == "done")
        merged = {(row["lo"], row["hi"]) for row in self._table.rows(("lo", "hi"), where)}
        left = [window for window in self.landed() if window[1] <= until and window not in merged]
        return [manifest for window in left if (manifest := self.manifest(*window)) is not None]

    def landed_ts(self) -> int | None:
        """The hi of the last landed window; None for an empty lake."""
        found = self.landed()
        return found[-1][1] if found else None

    def start_ts(self) -> int | None:
        """Where this lake starts, exclusive, fixed by the first plan; None before it."""
        rows = self._table.rows(("lo",), ds.field("stage") == "start")
        return min((row["lo"] for row in rows), default=None)

    def manifest(self, lo: int, hi: int) -> WindowManifest | None:
        """The sealed manifest of the window (lo, hi]; None when it is not landed."""
        texts = self._manifests("land", lo, hi)
        return WindowManifest.from_json(texts[0]) if texts else None

    def apply_manifests(self, lo: int, hi: int) -> list[ApplyManifest]:
        """The apply manifests written for (lo, hi], the newest last; several when the target or its options changed."""
        return [ApplyManifest.from_json(text) for text in self._manifests("convert", lo, hi)]

    def sealed_windows(self, hi: int) -> list[tuple[int, int]]:
        """Windows that the SQL sink sealed and that cover the landed window ending at `hi`, the newest first."""
        where = (ds.field("stage") == "convert") & (ds.field("state") == "done")
        where &= (ds.field("lo") < hi) & (ds.field("hi") >= hi)
        rows = sorted(self._table.rows(("lo", "hi", "at_ms"), where), key=lambda row: -row["at_ms"])
        return [(row["lo"], row["hi"]) for row in rows]

    def _manifests(self, stage: str, lo: int, hi: int) -> list[str]:
        where = (ds.field("stage") == stage) & (ds.field("state") == "done")
        where &= (ds.field("lo") == lo) & (ds.field("hi") == hi)
        rows = sorted(self._table.rows(("manifest", "at_ms"), where), key=lambda row: row["at_ms"])
        return [row["manifest"] for row in rows]

"""Records of a TiDB source's full load in the lake: its progress, and each range of a table that has been read.

A range is stored completely or not at all: its row of `base_chunk` names the files with its transactions. The load is
recorded by events of the table `window`, stage `base`: `started` with its parameters, again after each window, `done`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from binlake.common.lakecolumns import BaseChunk
from binlake.common.rowhash import Fold
from binlake.errors import DamagedManifest
from binlake.lake.control import ControlTable
from binlake.lake.controltables import BASE_CHUNK
from binlake.lake.parts import TablePart
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.window.events import EventRow

STAGE = "base"
_FACTS = ("schema_version", "chunk_rows", "tables", "rows_estimated")


@dataclass(frozen=True)
class BaseLoad:
    """A load. Its transactions have commit_ts in (`from_ts`, `base_ts`] and contain the source as of `base_ts`.

    `rows_estimated`, `tables`: estimated at the start; `rows`: the number read up to the last sealed window.
    """

    from_ts: int
    base_ts: int
    schema_version: int
    chunk_rows: int
    tables: int
    rows_estimated: int
    done: bool = False
    rows: int = 0

    @classmethod
    def of(cls, event: EventRow) -> BaseLoad:
        """Parse an event of stage `base`. Raises DamagedManifest."""
        try:
            detail = json.loads(event["detail"])
            facts = {name: int(detail[name]) for name in _FACTS}
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedManifest(
                f"the event of the full load cannot be read: {error!r}", hint="restore the table `window`"
            ) from error
        return cls(event["lo"], event["hi"], **facts, done=event["state"] == "done", rows=event["rows"])

    @property
    def text(self) -> str:
        """The load's progress, for people."""
        share = f"{100 * self.rows // max(self.rows_estimated, self.rows, 1)} %"
        return f"full load as of {self.base_ts}: {self.rows:,} of about {self.rows_estimated:,} rows read ({share})"


@dataclass(frozen=True)
class LoadedRange:
    """A range of a table from `low` (exclusive) to `high` (literals, "" = no bound), and its transactions' files.

    The transactions have commit_ts from `first_ts` to `last_ts`, but not necessarily every one in between.
    """

    table_id: int
    db: str
    table: str
    low: str
    high: str
    first_ts: int
    last_ts: int
    rows: int
    transactions: int
    bytes: int
    fold: Fold
    parts: tuple[TablePart, ...]


class BaseTable:
    """Reads and extends a lake's records of its full load; `windows`: the lake's log as the caller sees it."""

    def __init__(self, paths: LakePaths, windows: WindowLog | None = None) -> None:
        self._chunks = ControlTable(paths.locate_table(BASE_CHUNK.name), BASE_CHUNK)
        self._windows = WindowLog(paths) if windows is None else windows

    def load(self) -> BaseLoad | None:
        """The load of this lake, or None. Raises DamagedManifest."""
        event = self._windows.read_last_event((STAGE,))
        return None if event is None else BaseLoad.of(event)

    def record(self, load: BaseLoad, run_id: str, seconds: float = 0.0) -> None:
        """Record the progress of `load`, or that it is done. Durable when this returns."""
        state = "done" if load.done else "started"
        detail = {name: getattr(load, name) for name in _FACTS}
        event = WindowEvent(STAGE, load.from_ts, load.base_ts, state, load.rows, seconds, run_id, detail=detail)
        self._windows.record(event)

    def clear(self) -> None:
        """Delete the ranges of a load whose start was never recorded."""
        self._chunks.clear()

    def add(self, chunks: Sequence[LoadedRange]) -> None:
        """Record that `chunks` are read. Durable when this returns."""
        self._chunks.append([_encode_chunk(chunk) for chunk in chunks])

    def read_chunks(self) -> list[LoadedRange]:
        """The ranges that have been read, in the order of their commit_ts."""
        return sorted(map(_decode_chunk, self._chunks.read_rows()), key=lambda chunk: chunk.first_ts)

    def count_rows_read(self) -> int:
        """The number of rows in the ranges that have been read."""
        return sum(row[BaseChunk.ROWS] for row in self._chunks.read_rows((BaseChunk.ROWS,)))

    def describe(self, load: BaseLoad) -> str:
        """The progress of `load`, for people."""
        return replace(load, rows=self.count_rows_read()).text


def _encode_chunk(chunk: LoadedRange) -> dict[str, Any]:
    values = {name: getattr(chunk, name) for name in BASE_CHUNK.list_column_names() if hasattr(chunk, name)}
    fold = json.dumps([str(number) for number in asdict(chunk.fold).values()])
    parts = json.dumps([asdict(part) for part in chunk.parts])
    return {**values, BaseChunk.FOLD: fold, BaseChunk.PARTS: parts, BaseChunk.AT_MS: time.time_ns() // 1_000_000}


def _decode_chunk(row: dict[str, Any]) -> LoadedRange:
    fold = Fold(*map(int, json.loads(row[BaseChunk.FOLD])))
    parts = tuple(TablePart(**part) for part in json.loads(row[BaseChunk.PARTS]))
    plain = {name: value for name, value in row.items() if name != BaseChunk.AT_MS}
    return LoadedRange(**{**plain, BaseChunk.FOLD: fold, BaseChunk.PARTS: parts})

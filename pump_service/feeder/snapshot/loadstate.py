"""The state of an unfinished load in the journal: its snapshots, and the ranges of keys that were read in each.

An interrupted load reads only the rest, in a new snapshot: before, the log brings what was read up to it (`catchup`),
and everything counts as read in one snapshot again. If a table with committed rows has to be read again, the journal
keeps its name until it is dropped and created again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from binlake.mysqlbinlog.model import BinlogPosition
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.mysqlbinlog.tablerows.ranges import KeyRanges
from binlake.pump_service.feeder.journal import Batch, FeederJournal, LoadedChunk
from binlake.pump_service.feeder.snapshot.progress import TableLoad
from binlake.pump_service.feeder.snapshot.reading import Value

Facts = dict[str, str]

_OUTDATED = "outdated rows of "
"""Prefix of the fact, completed by the source's name, with the tables of `read_outdated_tables`."""


def read_load_record(journal: FeederJournal, source: str) -> dict[str, Any]:
    """The journal's record of a source's load: `state` (`loading`, `done`), `rows`, `commit_ts`; {} = no load."""
    text = journal.read_fact(_format_fact_name(source))
    record: dict[str, Any] = json.loads(text) if text else {}
    if record.get("state") == "loading":
        tables = [json.loads(body) for body in journal.read_load_tables(source).values()]
        record["rows"] = sum(table["rows"] for table in tables)
        record["tables_done"] = sum(table["done"] for table in tables)
        record["bytes"] = sum(table.get("bytes", 0) for table in tables)
    return record


def read_outdated_tables(journal: FeederJournal, source: str) -> list[Name]:
    """The tables that have rows of a load which was given up: they must be dropped before they are loaded again."""
    return [(db, table) for db, table in json.loads(journal.read_fact(_OUTDATED + source) or "[]")]


def build_outdated_facts(journal: FeederJournal, source: str, tables: Iterable[Name] | None = None) -> Facts:
    """The facts by which those of `tables` (None: all of the load) that have visible rows are outdated too."""
    stored = {name: TableLoad.from_json(body) for name, body in journal.read_load_tables(source).items()}
    given_up = stored if tables is None else tables
    outdated = [name for name in given_up if name in stored and stored[name].is_visible]
    return {_OUTDATED + source: json.dumps(sorted({*read_outdated_tables(journal, source), *outdated}))}


def build_load_facts(source: str, record: Mapping[str, Any]) -> Facts:
    """`record` as facts for the journal."""
    return {_format_fact_name(source): json.dumps(record)}


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """Where a snapshot was taken: its position in the log, and the server."""

    position: BinlogPosition
    server: str


class LoadState:
    """The unfinished load of `source`. `from_ts`: a timestamp before everything in it, 0 = not known yet; `began`: Unix
    seconds of its first attempt."""

    def __init__(self, journal: FeederJournal, source: str) -> None:
        self._journal, self._source = journal, source
        record = read_load_record(journal, source)
        if record.get("state") != "loading":
            record = {}
        self.from_ts = int(record.get("from_ts", 0))
        self.began = float(record.get("began", time.time()))
        self._total = int(record.get("tables", 0))
        self.snapshots = [
            SnapshotPosition(BinlogPosition(*snapshot["position"]), snapshot["server"])
            for snapshot in record.get("snapshots", ())
        ]
        self.tables = {name: TableLoad.from_json(body) for name, body in journal.read_load_tables(source).items()}

    @property
    def is_read(self) -> bool:
        """Whether all rows have been read, of every table in the last snapshot."""
        return (
            bool(self.snapshots)
            and len(self.tables) == self._total
            and all(table.ranges.is_complete for table in self.tables.values())
        )

    @property
    def has_rows(self) -> bool:
        """Whether any rows have been read and stored."""
        return any(table.ranges.snapshots for table in self.tables.values())

    def fit_tables(self, tables: Mapping[Name, int]) -> None:
        """Drop what was read of tables that are no longer among `tables`, or have another id there; add new ones."""
        outdated = [name for name, table in self.tables.items() if tables.get(name) != table.table_id]
        if outdated:
            self.read_again(outdated)
        for name, table_id in tables.items():
            self.tables.setdefault(name, TableLoad(table_id, KeyRanges()))
        self._total = len(tables)
        if not self.has_rows:
            self.snapshots = []

    @property
    def has_one_position(self) -> bool:
        """Whether everything that was read is at the position of the last snapshot: no change in the log comes before
        rows that are read now."""
        return len(self.snapshots) == 1

    @property
    def outdated(self) -> list[Name]:
        """See `read_outdated_tables`."""
        return read_outdated_tables(self._journal, self._source)

    def read_again(self, tables: Iterable[Name]) -> None:
        """Roll back what was read of `tables`; those with visible rows are outdated."""
        names = list(tables)
        self._journal.drop_chunks(self._source, names, build_outdated_facts(self._journal, self._source, names))
        for name in names:
            self.tables.pop(name, None)

    def start_snapshot(self, position: SnapshotPosition, from_ts: int) -> Facts:
        """Add the snapshot at `position`, which is read next; returns the facts that record it. They must become
        durable together with the definitions, in which outdated tables are dropped."""
        self.snapshots.append(position)
        self.from_ts = from_ts
        return {**self._build_facts(), _OUTDATED + self._source: "[]"}

    def join_snapshots(self) -> tuple[Facts, list[LoadedChunk]]:
        """Count everything that was read as read in the last snapshot, because the log was read up to there; returns
        what the journal must record together with the changes in the log."""
        del self.snapshots[:-1]
        read = {name: table for name, table in self.tables.items() if table.ranges.snapshots}
        for table in read.values():
            table.ranges.count_as_one()
            table.is_visible |= table.rows > 0
        chunks = [LoadedChunk((self._source, *name), table.to_json(), 0, ()) for name, table in read.items()]
        return self._build_facts(), chunks

    def _build_facts(self) -> Facts:
        snapshots = [
            {"position": list(asdict(snapshot.position).values()), "server": snapshot.server}
            for snapshot in self.snapshots
        ]
        record = {"state": "loading", "from_ts": str(self.from_ts), "began": self.began, "snapshots": snapshots}
        return build_load_facts(self._source, {**record, "tables": self._total})

    def finish_chunk(
        self, value: Value, rows: int, batches: Sequence[Batch], *, is_visible: bool, size: int = 0
    ) -> LoadedChunk:
        """The chunk that `value` completes, with its `rows`, their bytes (`size`) and prewritten batches; the caller
        stores it, or commits it (`is_visible`)."""
        snapshot, table = len(self.snapshots) - 1, self.tables[value.name]
        table.ranges.finish(value.chunk.low, value.chunk.high, snapshot)
        table.rows += rows
        table.chunks += 1
        table.bytes += size
        table.is_visible |= is_visible and rows > 0
        return LoadedChunk((self._source, *value.name), table.to_json(), snapshot, batches)

    def store_chunks(self, chunks: Sequence[LoadedChunk]) -> None:
        """Record chunks that stay open."""
        self._journal.store_chunks(chunks)

    def read_batches(self) -> dict[int, list[Batch]]:
        """The prewritten batches by snapshot."""
        batches: dict[int, list[Batch]] = {number: [] for number in range(len(self.snapshots))}
        for snapshot, batch in self._journal.read_load_batches(self._source):
            batches[snapshot].append(batch)
        return batches

    def forget(self) -> None:
        """Roll back everything: the load starts again. Tables with visible rows are outdated."""
        record = {"state": "loading", "from_ts": str(self.from_ts), "began": self.began}
        facts = build_load_facts(self._source, record) | build_outdated_facts(self._journal, self._source)
        self._journal.drop_chunks(self._source, facts=facts)


def _format_fact_name(source: str) -> str:
    return f"load of {source}"

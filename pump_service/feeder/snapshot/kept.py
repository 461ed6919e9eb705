"""What the journal keeps of a load that is not done: its snapshots, and the ranges of keys that were read in each.

Chunks whose prewrites are acknowledged stay in the journal, so that a load that broke off reads only the rest, in a new
snapshot. `catchup` makes one state of what several snapshots have read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from binlake.mysqlbinlog.model import Position
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.mysqlbinlog.tablerows.ranges import Ranges
from pump_service.feeder.journal import Batch, Journal, LoadedChunk
from pump_service.feeder.snapshot.reading import Value
from pump_service.feeder.snapshot.tableload import TableLoad

Facts = dict[str, str]


def load_record(journal: Journal, source: str) -> dict[str, Any]:
    """What the journal knows of a source's load: `state` (`loading`, `done`), `rows`, `commit_ts`; {} = it has none."""
    text = journal.fact(_fact(source))
    record: dict[str, Any] = json.loads(text) if text else {}
    if record.get("state") == "loading":
        tables = [json.loads(body) for body in journal.load_tables(source).values()]
        record["rows"] = sum(table["rows"] for table in tables)
        record["tables_done"] = sum(table["done"] for table in tables)
    return record


def record_facts(source: str, record: Mapping[str, Any]) -> Facts:
    """The facts of the journal that hold `record`."""
    return {_fact(source): json.dumps(record)}


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """Where a snapshot was taken: its place in the log, and the server."""

    position: Position
    server: str


class KeptLoad:
    """The load of `source` that is not done. `from_ts`: before everything of it, 0 = not known yet; `began`: Unix
    seconds of its first attempt."""

    def __init__(self, journal: Journal, source: str) -> None:
        self._journal, self._source = journal, source
        record = load_record(journal, source)
        if record.get("state") != "loading":
            record = {}
        self.from_ts = int(record.get("from_ts", 0))
        self.began = float(record.get("began", time.time()))
        self._total = int(record.get("tables", 0))
        self.snapshots = [
            SnapshotPlace(Position(*snapshot["position"]), snapshot["server"])
            for snapshot in record.get("snapshots", ())
        ]
        self.tables = {name: TableLoad.from_json(body) for name, body in journal.load_tables(source).items()}

    @property
    def is_read(self) -> bool:
        """Whether all rows are: of every table that the last snapshot had."""
        return (
            bool(self.snapshots)
            and len(self.tables) == self._total
            and all(table.ranges.is_complete for table in self.tables.values())
        )

    @property
    def has_rows(self) -> bool:
        """Whether anything that was read is kept."""
        return any(table.ranges.snapshots for table in self.tables.values())

    def fit(self, tables: Mapping[Name, int]) -> None:
        """Forget what was read of tables that are not among `tables` any more, or not with this id."""
        outdated = [name for name, table in self.tables.items() if tables.get(name) != table.table_id]
        if outdated:
            self.read_again(outdated)
        for name, table_id in tables.items():
            self.tables.setdefault(name, TableLoad(table_id, Ranges()))
        self._total = len(tables)
        if not self.has_rows:
            self.snapshots = []

    def read_again(self, tables: Iterable[Name]) -> None:
        """Roll back what was read of `tables`."""
        names = list(tables)
        self._journal.drop_chunks(self._source, names)
        for name in names:
            self.tables.pop(name, None)

    def facts(self, place: SnapshotPlace, from_ts: int) -> Facts:
        """The facts that say that the snapshot at this place is read now."""
        self.snapshots.append(place)
        self.from_ts = from_ts
        snapshots = [
            {"position": list(asdict(snapshot.position).values()), "server": snapshot.server}
            for snapshot in self.snapshots
        ]
        record = {"state": "loading", "from_ts": str(from_ts), "began": self.began, "snapshots": snapshots}
        return record_facts(self._source, {**record, "tables": self._total})

    def keep(self, chunks: Sequence[tuple[Value, int, Sequence[Batch]]]) -> None:
        """The chunks that these values end are prewritten: (value, rows of the chunk, batches)."""
        snapshot, stored = len(self.snapshots) - 1, list[LoadedChunk]()
        for value, rows, batches in chunks:
            table = self.tables[value.name]
            table.ranges.finish(value.chunk.low, value.chunk.high, snapshot)
            table.rows += rows
            table.chunks += 1
            stored.append(LoadedChunk((self._source, *value.name), table.to_json(), snapshot, batches))
        self._journal.keep_chunks(stored)

    def batches(self) -> dict[int, list[Batch]]:
        """By snapshot, what is prewritten."""
        batches: dict[int, list[Batch]] = {number: [] for number in range(len(self.snapshots))}
        for snapshot, batch in self._journal.load_batches(self._source):
            batches[snapshot].append(batch)
        return batches

    def forget(self) -> None:
        """Roll back all of it: the load begins again."""
        self._journal.drop_chunks(self._source)
        record = {"state": "loading", "from_ts": str(self.from_ts), "began": self.began}
        self._journal.set_facts(record_facts(self._source, record))


def _fact(source: str) -> str:
    return f"load of {source}"

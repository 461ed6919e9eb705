"""Tables that are loaded while their source's log is read: which, and how much of each has been read.

At each position of the log, the rows that were read are what the source has there in the ranges that were read. So DDL
on such a table is replicated like any other, and only a change of the key, by which ranges are cut, or of rows that no
log shows (EXCHANGE PARTITION) lets its load begin again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from binlake.mysqlbinlog.tablerows.link import Name
from binlake.mysqlbinlog.tablerows.ranges import KeyRanges, cut_column
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.snapshot.progress import TableLoad
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair

_TABLE_LOADS = "table loads of "
"""Prefix of the journal's fact, completed by the source's name."""


FindById = Callable[[int], tuple[Name, TableDef] | None]
"""The name at the source, and the definition, of the table with an id (`Catalog.find_by_id`)."""


@dataclass
class AddedTables:
    """Those of `source` that are not complete. `wanted`: to be dropped and created before their rows are read;
    `tables`: being read; `done`: complete since `began` (Unix seconds); `keys`: the column by which each table's ranges
    are cut; `rounds`: how many were committed."""

    source: str
    wanted: set[Name] = field(default_factory=set)
    tables: dict[Name, TableLoad] = field(default_factory=dict)
    keys: dict[Name, str] = field(default_factory=dict)
    done: dict[Name, TableLoad] = field(default_factory=dict)
    rounds: int = 0
    from_ts: int = 0
    began: float = 0.0

    @classmethod
    def read(cls, journal: FeederJournal, source: str) -> AddedTables:
        """What the journal has."""
        text = journal.read_fact(_TABLE_LOADS + source)
        if not text:
            return cls(source)
        stored: dict[str, Any] = json.loads(text)
        wanted = {(db, table) for db, table in stored["wanted"]}
        parsed = {
            kind: {(db, table): TableLoad.from_json(body) for db, table, body in stored[kind]}
            for kind in ("tables", "done")
        }
        keys = {(db, table): key for db, table, key in stored["keys"]}
        counts = int(stored["rounds"]), int(stored["from_ts"]), float(stored["began"])
        return cls(source, wanted, parsed["tables"], keys, parsed["done"], *counts)

    def build_facts(self) -> dict[str, str]:
        """What records it."""
        stored = {
            "wanted": sorted(self.wanted),
            "tables": [(*name, load.to_json()) for name, load in self.tables.items()],
            "done": [(*name, load.to_json()) for name, load in self.done.items()],
            "keys": [(*name, key) for name, key in self.keys.items()],
            "rounds": self.rounds, "from_ts": str(self.from_ts), "began": self.began,
        }  # fmt: skip
        return {_TABLE_LOADS + self.source: json.dumps(stored)}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to load."""
        return not self.wanted and not self.tables

    def to_json(self) -> dict[str, Any]:
        """For the status of a feeder that does not run; {} if there is nothing to load."""
        loads = [*self.done.values(), *self.tables.values()]
        counts = {"rows": sum(load.rows for load in loads), "tables": len(loads) + len(self.wanted)}
        return {} if self.is_empty else {"state": "loading", **counts, "tables_done": len(self.done)}

    def want(self, names: Iterable[Name], from_ts: int) -> None:
        """Load `names` from the beginning. `from_ts`: a timestamp before everything that this publishes."""
        new = set(names)
        if self.is_empty and new:
            self.done, self.from_ts, self.began = {}, from_ts, time.time()
        self.wanted |= new
        for name in new:
            self._forget(name)
            self.done.pop(name, None)

    def begin(self, definitions: Mapping[Name, TableDef]) -> None:
        """The wanted tables are empty now, with these `definitions`; those without one do not exist."""
        self.wanted -= {name for name in self.wanted if name not in definitions}
        for name, definition in definitions.items():
            self.wanted.discard(name)
            self.tables[name] = TableLoad(definition.id, KeyRanges())
            self.keys[name] = describe_key(definition)

    def follow_statement(self, find: FindById, exchanged: Iterable[Collection[Name]]) -> bool:
        """Adapt to a statement of the log, after which `find` finds tables; `exchanged`: pairs of tables that it
        exchanges rows of. Returns whether anything changed."""
        before = self.build_facts()
        for pair in exchanged:
            mine = {fold_pair(name): name for name in self.tables}
            if any(fold_pair(name) in mine for name in pair):
                self.want([mine.get(fold_pair(name), name) for name in pair], self.from_ts)
        for name, load in list(self.tables.items()):
            found = find(load.table_id)
            if found is None:
                # Dropped, or truncated: all rows that it has now are in the log.
                self._forget(name)
            elif describe_key(found[1]) != self.keys[name]:
                self.want([found[0]], self.from_ts)
                self._forget(name)
            elif found[0] != name or found[1].id != load.table_id:
                load.table_id = found[1].id
                key = self.keys[name]
                self._forget(name)
                self.tables[found[0]], self.keys[found[0]] = load, key
        return self.build_facts() != before

    def finish_complete(self) -> list[Name]:
        """Forget the tables that are complete; returns them."""
        complete = [name for name, load in self.tables.items() if load.ranges.is_complete]
        for name in complete:
            self.done[name] = self.tables[name]
            self._forget(name)
        return complete

    def release_claims(self) -> None:
        """Count as unread what was being read when a round was given up."""
        for load in self.tables.values():
            load.ranges = KeyRanges.of(load.ranges.store())

    def _forget(self, name: Name) -> None:
        self.tables.pop(name, None)
        self.keys.pop(name, None)


def describe_key(table: TableDef) -> str:
    """The column by which the table's ranges are cut: bounds are literals in its type and order; "" = none."""
    column = cut_column(table)
    if column is None:
        return ""
    return json.dumps([column.id, column.name, column.tp, column.flen, column.flag, column.charset, column.collate])

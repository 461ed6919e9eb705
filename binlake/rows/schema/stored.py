"""The tables of a snapshot of the schema. A definition is read and parsed when it is asked for.

Rule: what a window costs follows from the tables that it touches, not from those that live. So ids and names of all
tables are read at the first question, in a few rows, and a definition together with those beside it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from binlake.errors import SchemaError
from binlake.rows.schema.emptied import Emptied
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.names import fold_name
from binlake.rows.schema.reorganized import Reorganized

READ_TOGETHER = 128
"""Number of tables whose definitions are read at once: about as many rows as `schema_snapshot` has in a row group."""
_HELD = 8
"""Number of such groups whose texts are held."""
_NAMED_TOGETHER = 4096
"""Number of tables of a row with names."""

Json = Mapping[str, Any]


class StoredName(NamedTuple):
    """A table of a snapshot, before its definition is read."""

    id: int
    db_id: int
    name: str


class StoredSnapshotReader(Protocol):
    """The rows of one snapshot. It can be pickled: a task reads the snapshot where it runs."""

    def read_names(self) -> list[str]:
        """The texts of `dump_names`, in any order; several times the same is allowed."""

    def read_tables(self, first: int, last: int) -> Mapping[int, str]:
        """By id, the texts of the tables with first <= id <= last."""


@dataclass(frozen=True, eq=False)
class SnapshotIndex:
    """Ids and names of the tables that `reader` finds, of `databases`; read when they are asked for, and then kept.

    The texts of the last definitions are kept too. All who open the snapshot share them. Safe to share among threads.
    """

    reader: StoredSnapshotReader | None = None
    databases: Mapping[int, DbInfo] = field(default_factory=dict)
    _texts: dict[int, Mapping[int, str]] = field(default_factory=dict, repr=False)

    @cached_property
    def names(self) -> dict[int, StoredName]:
        """All tables by id, sorted by it."""
        texts = self.reader.read_names() if self.reader is not None else []
        return {name.id: name for name in sorted({name for text in texts for name in parse_names(text)})}

    @cached_property
    def ids(self) -> Sequence[int]:
        """All ids, sorted."""
        return list(self.names)

    @cached_property
    def by_name(self) -> dict[tuple[str, str], int]:
        """The ids by (database, table), both folded."""
        folded = {db.id: fold_name(db.name) for db in self.databases.values()}
        return {(folded[name.db_id], fold_name(name.name)): name.id for name in self.names.values()}

    def read_text(self, table_id: int) -> str:
        """The text of the row of `table_id`, which the snapshot has. Raises SchemaError."""
        part = bisect_left(self.ids, table_id) // READ_TOGETHER
        texts = self._texts.get(part)
        if texts is None:
            texts = self._texts[part] = self._read_texts(part)
            for old in list(self._texts)[:-_HELD]:
                self._texts.pop(old, None)
        if (text := texts.get(table_id)) is None:
            raise SchemaError(
                "a schema snapshot lacks a table that it names",
                where={"table_id": table_id, "name": self.names[table_id].name},
                hint="restore the files of the lake's table `schema_snapshot` from a copy",
            )
        return text

    def _read_texts(self, part: int) -> Mapping[int, str]:
        ids = self.ids[part * READ_TOGETHER : (part + 1) * READ_TOGETHER]
        assert self.reader is not None
        return self.reader.read_tables(ids[0], ids[-1])

    def __reduce__(self) -> tuple[object, ...]:
        # What was read stays here: a task reads what it needs.
        return SnapshotIndex, (self.reader, self.databases)


@dataclass(frozen=True, eq=False)
class StoredTables:
    """The tables of a snapshot. Two are the same only if they are the same object: each has definitions of its own."""

    index: SnapshotIndex = field(default_factory=SnapshotIndex)
    _parsed: dict[int, TableDef] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.index.names)

    def __iter__(self) -> Iterator[StoredName]:
        """All tables by id."""
        return iter(self.index.names.values())

    def __contains__(self, table_id: object) -> bool:
        return table_id in self.index.names

    def find_id(self, name: tuple[str, str]) -> int | None:
        """The id of the table of that (database, table), both folded, or None."""
        return self.index.by_name.get(name)

    def find(self, table_id: int) -> TableDef | None:
        """The definition of `table_id`, always the same object; None if the snapshot has no such table."""
        known = self._parsed.get(table_id)
        if known is None and table_id in self:
            # Another thread may parse it too, and then both get the same object.
            known = self._parsed.setdefault(table_id, self._parse(table_id))
        return known

    def read_text(self, table_id: int) -> str:
        """The text of the row of `table_id`, which the snapshot has. Raises SchemaError."""
        return self.index.read_text(table_id)

    def _parse(self, table_id: int) -> TableDef:
        return parse_table(load_row("table", table_id, self.read_text(table_id)), self.index.databases)

    def __reduce__(self) -> tuple[object, ...]:
        return StoredTables, (self.index,)


def dump_names(names: Iterable[StoredName]) -> Iterator[str]:
    """The texts of rows that name the tables of a snapshot: `{"ids": […], "schema_ids": […], "names": […]}`."""
    listed = list(names)
    for first in range(0, len(listed), _NAMED_TOGETHER):
        ids, schemas, own = zip(*listed[first : first + _NAMED_TOGETHER], strict=True)
        yield dump_row({"ids": ids, "schema_ids": schemas, "names": own})


def parse_names(text: str) -> Iterator[StoredName]:
    """What `dump_names` wrote. Raises SchemaError."""
    raw = load_row("names", 0, text)
    try:
        yield from map(StoredName, raw["ids"], raw["schema_ids"], raw["names"])
    except (KeyError, TypeError) as error:
        raise SchemaError(f"the names of a schema snapshot cannot be read: {error!r}") from error


def dump_table(table: TableDef) -> str:
    """The text of a table's row."""
    left = {"emptied": table.emptied, "reorganized": table.reorganized}
    known = {name: value.to_json() for name, value in left.items() if value is not None}
    return dump_row({"schema_id": table.db_id, "info": table.raw, **known})


def parse_table(raw: Json, databases: Mapping[int, DbInfo]) -> TableDef:
    """The table of the JSON that `dump_table` wrote. Raises SchemaError."""
    db = require_database(databases, raw["schema_id"], raw["info"]["id"])
    emptied = Emptied.from_json(raw.get("emptied"))
    return TableDef.from_json(raw["info"], db, emptied, Reorganized.from_json(raw.get("reorganized")))


def require_database(databases: Mapping[int, DbInfo], db_id: int, table_id: int) -> DbInfo:
    """The database of a table. Raises SchemaError."""
    if db_id not in databases:
        raise SchemaError(
            "a table belongs to a database that the schema history does not have",
            where={"schema_id": db_id, "table_id": table_id},
        )
    return databases[db_id]


def dump_row(value: object) -> str:
    """JSON as the rows of a snapshot have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def load_row(kind: str, object_id: int, text: str) -> dict[str, Any]:
    """The JSON object of a row. Raises SchemaError."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SchemaError("a row of a schema snapshot is not JSON", where={"kind": kind, "id": object_id}) from error
    if not isinstance(value, dict):
        raise SchemaError("a row of a schema snapshot is not a JSON object", where={"kind": kind, "id": object_id})
    return value

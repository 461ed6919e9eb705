"""Tables counted and rebuilt from a feed's CSV files by a reader that knows only the files' layout.

A line has a row in the definition of its version. So the rows that were written since the last definition are known
in full, and of the older ones, which a DDL may have converted, only how many there are: not even that once a DDL has
removed partitions, as no line tells which rows they had.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from support.csvrows import split_csv

from binlake.rows.codec.datum import format_double, format_float

Row = tuple[str | None, ...]
CSV = {"output-old-value": True, "include-commit-ts": True, "binary-encoding-method": "hex"}
_STARTS_AGAIN = ("CREATE", "TRUNCATE", "DROP")
_REMOVES = ("DROP PARTITION", "TRUNCATE PARTITION")
_HEAD = 5
"""Values of a line before the columns: operation, table, database, commit_ts, is-update."""


@dataclass
class FeedTable:
    """`count` rows, None if that is not known. `written` and `deleted`: the lines of the last definition."""

    count: int | None = 0
    written: Counter[Row] = field(default_factory=Counter)
    deleted: Counter[Row] = field(default_factory=Counter)

    def list_written(self) -> list[Row]:
        """The rows that lines of the last definition have and did not delete."""
        return list((self.written - self.deleted).elements())

    def add(self, row: Row) -> None:
        """A row was inserted, or is one after an update."""
        self.written[row] += 1
        self.count = None if self.count is None else self.count + 1

    def remove(self, row: Row) -> None:
        """A row was deleted, or is one before an update."""
        self.deleted[row] += 1
        self.count = None if self.count is None else self.count - 1


def read_feed(folder: Path) -> dict[tuple[str, str], FeedTable]:
    """All tables of the feed's folder."""
    return {
        (unquote(table.parent.name), unquote(table.name)): _read_table(table)
        for table in folder.glob("*/*")
        if (table / "meta").is_dir()
    }


def _read_table(folder: Path) -> FeedTable:
    schemas = [json.loads(at.read_bytes()) for at in folder.glob("meta/schema_*.json")]
    found = FeedTable()
    for schema in sorted(schemas, key=lambda one: int(one["TableVersion"])):
        query = schema["Query"].lstrip().upper()
        starts_again, removes = query.startswith(_STARTS_AGAIN), any(words in query for words in _REMOVES)
        found = FeedTable() if starts_again else FeedTable(None if removes else found.count)
        columns = [_choose_conversion(column) for column in schema["TableColumns"] or ()]
        for at in sorted((folder / str(schema["TableVersion"])).rglob("CDC*.csv")):
            for line in split_csv(at.read_bytes().decode()):
                if len(line) > _HEAD:
                    change = found.remove if line[0] == "D" else found.add
                    change(tuple(map(_convert, columns, line[_HEAD:])))
    return found


def _convert(conversion: Callable[[str], str], value: str | None) -> str | None:
    return None if value is None else conversion(value)


def _choose_conversion(column: Mapping[str, Any]) -> Callable[[str], str]:
    """From a line's value to the canonical text, by the type that the definition's file gives."""
    kind = str(column["ColumnType"]).upper()
    if "BINARY" in kind or "BLOB" in kind:
        return str.upper
    if kind == "BIT":
        digits = (int(column["ColumnPrecision"]) + 7) // 8 * 2
        return lambda text: f"{int(text):0{digits}X}"
    if kind.startswith("FLOAT"):
        return lambda text: format_float(float(np.float32(text)))
    return (lambda text: format_double(float(text))) if kind.startswith("DOUBLE") else str

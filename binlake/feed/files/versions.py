"""The table definitions of a feed's files, in the form of TiCDC's schema files: one file per table version.

The version of a row is the commit_ts of its table's last DDL before it, or the start of the lake if there was none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from binlake.errors import SchemaError
from binlake.feed.files.layout import build_schema_path
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

Json = dict[str, Any]


@dataclass(frozen=True)
class TableVersion:
    """A definition of `db`.`table` for rows with commit_ts >= `since`. `table` is empty for a DDL on a database.

    `query`, `action`: the DDL that created it (with TiDB's type number); empty and 0 if it was before the feed.
    `columns`: TiCDC's TableColumns as JSON text.
    """

    db: str
    table: str
    version: int
    since: int
    query: str = ""
    action: int = 0
    columns: str = "[]"

    def to_json(self) -> Json:
        """Plain values for a sealed manifest; timestamps are text (DESIGN 3.12)."""
        return {**asdict(self), "version": str(self.version), "since": str(self.since)}

    @classmethod
    def of(cls, definition: TableDef, version: int, since: int, query: str = "", action: int = 0) -> TableVersion:
        """The version of a table with the columns of `definition`."""
        columns = json.dumps([_describe_column(column) for column in definition.row_columns], ensure_ascii=False)
        return cls(definition.db, definition.name, version, since, query, action, columns)

    def build_schema_file(self) -> tuple[str, bytes]:
        """Path and content of the schema file. The checksum depends only on table and columns."""
        columns = json.loads(self.columns)
        checksum = zlib.crc32(json.dumps([self.db, self.table, columns], ensure_ascii=False).encode())
        content = {
            "Table": self.table,
            "Schema": self.db,
            "Version": 1,
            "TableVersion": self.version,
            "Query": self.query,
            "Type": self.action,
            "TableColumns": columns if self.table else None,
            "TableColumnsTotal": len(columns),
        }
        path = build_schema_path(self.db, self.table, self.version, checksum)
        return path, json.dumps(content, ensure_ascii=False, indent=4).encode()


class Versions:
    """The versions of the tables of one window."""

    def __init__(self, versions: Iterable[TableVersion]) -> None:
        self._of: dict[tuple[str, str], list[TableVersion]] = {}
        for version in sorted(versions, key=lambda each: (each.since, each.version)):
            self._of.setdefault((version.db, version.table), []).append(version)

    def look_up(self, db: str, table: str) -> list[TableVersion]:
        """The versions of a table, in order. Raises SchemaError for a table without one."""
        versions = self._of.get((db, table))
        if versions is None:
            raise SchemaError("a table has rows but no version", where={"table": f"{db}.{table}"},
                              hint="run encode of that window again")  # fmt: skip
        return versions


def parse_versions(raw: Iterable[Mapping[str, Any]]) -> tuple[TableVersion, ...]:
    """Parse what `to_json` wrote."""
    return tuple(
        TableVersion(**{**entry, "version": int(entry["version"]), "since": int(entry["since"])}) for entry in raw
    )


def _describe_column(column: ColumnInfo) -> Json:
    fields: Json = {"ColumnName": column.name, "ColumnType": _format_type(column)}
    if column.tp in (t.NEWDECIMAL, t.FLOAT, t.DOUBLE):
        fields |= _build_number_field("ColumnPrecision", column.flen) | _build_number_field(
            "ColumnScale", column.decimal
        )
    elif column.tp in (t.DATETIME, t.TIMESTAMP, t.DURATION):
        fields |= _build_number_field("ColumnScale", column.fsp) if column.fsp else {}
    elif column.tp in t.INTEGERS or column.tp in (t.YEAR, t.BIT):
        fields |= _build_number_field("ColumnPrecision", column.flen)
    elif column.tp in t.STRINGS:
        fields |= _build_number_field("ColumnLength", column.flen)
    if column.not_null:
        fields["ColumnNullable"] = "false"
    if column.flag & t.FLAG_PRIMARY:
        fields["ColumnIsPk"] = "true"
    if column.default is not None:
        fields["ColumnDefault"] = column.default
    return fields


def _format_type(column: ColumnInfo) -> str:
    numbers = column.tp in t.INTEGERS or column.tp in (t.NEWDECIMAL, t.FLOAT, t.DOUBLE)
    return column.type_name.upper() + (" UNSIGNED" if column.unsigned and numbers else "")


def _build_number_field(name: str, number: int) -> Json:
    return {} if number < 0 else {name: str(number)}

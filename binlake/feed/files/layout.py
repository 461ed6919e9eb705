"""The layout of a feed's files below its root, as in TiCDC's storage sink: paths, and the files of table definitions.

`{schema}/{table}/{version}/{date}/CDC{number}.{ending}` has data, `.../{date}/meta/CDC.index` the greatest number of a
folder, `{schema}/{table}/meta/schema_{version}_{checksum}.json` a definition, and `metadata` the checkpoint. Binlake
adds the file `_binlake/plan` (binlake.feed.files.publisher).

A table has one schema file per version. The version of a row is the commit_ts of its table's last DDL before it, or the
start of the lake if there was none.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, unquote

from binlake import tso
from binlake.errors import Permanent, SchemaError
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

METADATA = "metadata"
PLAN = "_binlake/plan"
ENDINGS = {"avro": "avro", "canal-json": "json", "csv": "csv"}
"""The suffix of each protocol's data files."""
_DATA = re.compile(
    r"(?P<folder>(?P<db>[^/]+)/(?P<table>[^/]+)/(?P<version>\d+)(/(?P<date>[\d-]+))?)/CDC(?P<number>\d+)\.\w+"
)
_INDEX = re.compile(r"CDC(\d+)\.\w+\s*")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\%*?"<>|:]')
_DATE_CHARACTERS = {"none": 0, "year": 4, "month": 7, "day": 10}


@dataclass(frozen=True)
class DataFile:
    """A data file. `number` orders the files of one `folder`."""

    path: str
    folder: str
    db: str
    table: str
    version: int
    date: str
    number: int


def parse_data_path(path: str) -> DataFile | None:
    """The data file at `path`; None for another file."""
    match = _DATA.fullmatch(path)
    if match is None:
        return None
    names = (unquote(match["db"]), unquote(match["table"]))
    return DataFile(path, match["folder"], *names, int(match["version"]), match["date"] or "", int(match["number"]))


def build_table_folder(db: str, table: str) -> str:
    """The folder of a table; each character that a path cannot have is replaced by `%` and its hex code."""
    return f"{_escape_name(db)}/{_escape_name(table)}" if table else _escape_name(db)


def build_data_folder(db: str, table: str, version: int, date: str) -> str:
    """The folder of a table's data of one version and date."""
    return "/".join([build_table_folder(db, table), str(version), *([date] if date else [])])


def build_data_path(folder: str, number: int, width: int, protocol: str) -> str:
    """The path of the data file `number` of `folder`."""
    return f"{folder}/CDC{number:0{width}}.{ENDINGS[protocol]}"


def build_index_path(folder: str) -> str:
    """The path of the index of `folder`."""
    return f"{folder}/meta/CDC.index"


def parse_index_number(content: bytes | None, folder: str) -> int:
    """The greatest number in the index; 0 without an index. Raises Permanent for a damaged one."""
    if content is None:
        return 0
    match = _INDEX.fullmatch(content.decode("utf-8", "replace"))
    if match is None:
        raise Permanent(
            "an index of a feed's files is damaged", where={"folder": folder}, hint="write the name of its last file"
        )
    return int(match[1])


def build_schema_path(db: str, table: str, version: int, checksum: int) -> str:
    """The path of the file with a table's definition, or with a DDL on a database (`table` empty)."""
    return f"{build_table_folder(db, table)}/meta/schema_{version}_{checksum:010}.json"


def format_date(commit_ts: int, separator: str) -> str:
    """The folder of a commit's date in UTC; empty for the separator `none`."""
    return tso.to_datetime(commit_ts).strftime("%Y-%m-%d")[: _DATE_CHARACTERS[separator]]


def _escape_name(name: str) -> str:
    if name in (".", "..", "meta"):
        return "".join(f"%{ord(sign):02X}" for sign in name)
    return _UNSAFE.sub(lambda sign: quote(sign[0], safe=""), name)


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

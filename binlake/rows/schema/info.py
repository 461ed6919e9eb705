"""Table definitions as TiDB stores them: values parsed from TiDB's JSON, which is kept for a lossless round trip."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from binlake.errors import SchemaError
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC
from binlake.rows.schema.partitions import Emptied, Reorganized

Json = Mapping[str, Any]

CREATE_KEY = "source_create"
"""The key of a TableInfo that contains the CREATE TABLE statement of a MySQL or MariaDB source."""
SOURCE_KEY = "source_name"
"""The key of a TableInfo under which a feeder names the source that has the table; TiDB has no such key."""

_LENGTHS = {t.VARCHAR, t.VARSTRING, t.STRING, t.BIT}
_DEFAULT_LENGTH = {t.STRING: 1, t.BIT: 1}
_SIGNED = t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE}


@dataclass(frozen=True)
class ColumnInfo:
    """One column. `tp`, `flag`: TiDB's numbers (mysqltypes); `flen`, `decimal`: -1 = unspecified; `state` 5 = public.

    `default` and `origin_default` are TiDB's text (None = none); the `_bit` forms are bytes of BIT defaults.
    """

    id: int
    name: str
    offset: int
    tp: int
    flag: int
    flen: int
    decimal: int
    charset: str
    collate: str
    elems: tuple[str, ...]
    state: int
    default: str | None
    default_bit: bytes | None
    default_is_expr: bool
    origin_default: str | None
    origin_default_bit: bytes | None
    generated_expr: str
    generated_stored: bool
    hidden: bool
    comment: str

    @property
    def unsigned(self) -> bool:
        """True for UNSIGNED numbers."""
        return bool(self.flag & t.FLAG_UNSIGNED)

    @property
    def not_null(self) -> bool:
        """True when NULL is refused."""
        return bool(self.flag & t.FLAG_NOT_NULL)

    @property
    def is_public(self) -> bool:
        """True if the column is visible to queries."""
        return self.state == PUBLIC

    @property
    def is_generated(self) -> bool:
        """True for virtual and stored generated columns."""
        return bool(self.generated_expr)

    @property
    def is_virtual(self) -> bool:
        """True for virtual generated columns, which are not in insert and update images."""
        return self.is_generated and not self.generated_stored

    @property
    def is_binary(self) -> bool:
        """True when the canonical text is upper-case hex: BINARY, VARBINARY, BLOBs and BIT."""
        return self.tp == t.BIT or (self.tp in t.STRINGS and self.charset == "binary")

    @property
    def defaults_to_time(self) -> bool:
        """True if the default is the statement's time or date; the same text in a text column is a literal."""
        return self.tp in t.MOMENTS | t.DATES and (self.default or "").upper().startswith("CURRENT_")

    @property
    def has_empty_member(self) -> bool:
        """True if an ENUM or SET has the member '': servers show it like the value without a member."""
        return self.tp in (t.ENUM, t.SET) and "" in self.elems

    @property
    def fsp(self) -> int:
        """Digits of fractional seconds (0 to 6) of a temporal column."""
        return max(self.decimal, 0)

    @property
    def type_name(self) -> str:
        """The SQL keyword of the type without lengths, for example `varbinary` or `bigint`."""
        return t.look_up_type_name(self.tp, self.charset == "binary")

    @property
    def type_text(self) -> str:
        """The SQL type with lengths and elements, for example `decimal(10,2) unsigned`; without display widths."""
        name = self.type_name
        if self.tp == t.NEWDECIMAL:
            name = f"decimal({10 if self.flen < 0 else self.flen},{max(self.decimal, 0)})"
        elif self.tp in (t.ENUM, t.SET):
            name += "(" + ",".join("'" + elem.replace("'", "''") + "'" for elem in self.elems) + ")"
        elif self.tp in _LENGTHS:
            name += f"({self.flen if self.flen >= 0 else _DEFAULT_LENGTH.get(self.tp, 1)})"
        elif self.fsp and self.tp in (t.DATETIME, t.TIMESTAMP, t.DURATION):
            name += f"({self.fsp})"
        return name + (" unsigned" if self.unsigned and self.tp in _SIGNED else "")

    @classmethod
    def from_json(cls, data: Json) -> ColumnInfo:
        """Parse one element of TableInfo.cols; raises KeyError or TypeError when fields are missing."""
        kind = data["type"]
        return cls(
            id=data["id"],
            name=data["name"]["O"],
            offset=data["offset"],
            tp=kind["Tp"],
            flag=kind["Flag"],
            flen=_parse_length(kind["Flen"]),
            decimal=_parse_length(kind["Decimal"]),
            charset=kind["Charset"] or "",
            collate=kind["Collate"] or "",
            elems=tuple(kind.get("Elems") or ()),
            state=data["state"],
            default=_parse_default(data.get("default")),
            default_bit=_decode_bytes(data.get("default_bit")),
            default_is_expr=bool(data.get("default_is_expr")),
            origin_default=_parse_default(data.get("origin_default")),
            origin_default_bit=_decode_bytes(data.get("origin_default_bit")),
            generated_expr=data.get("generated_expr_string") or "",
            generated_stored=bool(data.get("generated_stored")),
            hidden=bool(data.get("hidden")),
            comment=data.get("comment") or "",
        )


@dataclass(frozen=True)
class IndexColumn:
    """A column of an index; `length` in characters (bytes for binary types), -1 = the whole column."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True)
class IndexInfo:
    """An index; `state` 5 = public."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    state: int
    unique: bool
    primary: bool
    visible: bool

    @classmethod
    def from_json(cls, data: Json) -> IndexInfo:
        """Parse one element of TableInfo.index_info."""
        return cls(
            id=data["id"],
            name=data["idx_name"]["O"],
            columns=tuple(IndexColumn(c["name"]["O"], c["offset"], c["length"]) for c in data["idx_cols"]),
            state=data["state"],
            unique=bool(data["is_unique"]),
            primary=bool(data["is_primary"]),
            visible=not data.get("is_invisible", False),
        )


@dataclass(frozen=True)
class RowIdentity:
    """The columns that identify a row: `primary` key, else first NOT NULL `unique` key without prefixes, else `row`."""

    kind: Literal["primary", "unique", "row"]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class DbInfo:
    """A database."""

    id: int
    name: str
    charset: str
    collate: str
    raw: Json = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, data: Json) -> DbInfo:
        """Parse binlog.DBInfo of a job."""
        return cls(data["id"], data["db_name"]["O"], data.get("charset") or "", data.get("collate") or "", data)


@dataclass(frozen=True, eq=False)
class TableDef:
    """A table, view or sequence of database `db`. Compared by identity: one object is one version of a definition.

    `own`: columns that only the target's table has; `kept`: those of them whose values must survive when a row is
    rewritten; both as the target spells them (S4-26). `emptied`: partitions that the DDL of this definition removed;
    `reorganized`: partitions that it rearranged. `taker`: for the current transaction, the table that an emptied
    partition was exchanged for, or None.
    """

    id: int
    db_id: int
    db: str
    name: str
    charset: str
    collate: str
    all_columns: tuple[ColumnInfo, ...]
    indexes: tuple[IndexInfo, ...]
    pk_is_handle: bool
    is_common_handle: bool
    partition_ids: tuple[int, ...]
    kind: Literal["table", "view", "sequence"]
    comment: str
    raw: Json = field(repr=False)
    own: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    emptied: Emptied | None = None
    reorganized: Reorganized | None = None
    taker: TableDef | None = field(default=None, repr=False)

    @classmethod
    def from_json(
        cls, data: Json, db: DbInfo, emptied: Emptied | None = None, reorganized: Reorganized | None = None
    ) -> TableDef:
        """Parse binlog.TableInfo of a job; raises SchemaError naming the table if a field is missing or invalid."""
        try:
            return cls(
                id=data["id"],
                db_id=db.id,
                db=db.name,
                name=data["name"]["O"],
                charset=data.get("charset") or "",
                collate=data.get("collate") or "",
                all_columns=tuple(ColumnInfo.from_json(c) for c in data.get("cols") or ()),
                indexes=tuple(IndexInfo.from_json(i) for i in data.get("index_info") or ()),
                pk_is_handle=bool(data.get("pk_is_handle")),
                is_common_handle=bool(data.get("is_common_handle")),
                partition_ids=_list_partition_ids(data.get("partition")),
                kind="view" if data.get("view") else "sequence" if data.get("sequence") else "table",
                comment=data.get("comment") or "",
                raw=data,
                emptied=emptied,
                reorganized=reorganized,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(
                f"a TableInfo cannot be read: {error!r}", where={"db": db.name, "table_id": _read_id(data)}
            ) from error

    @property
    def source(self) -> str:
        """The feeder's source that has the table; empty if the source is a TiDB."""
        return str(self.raw.get(SOURCE_KEY) or "")

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """Columns that are visible to queries: public and not hidden, in table order."""
        return tuple(c for c in self.all_columns if c.is_public and not c.hidden)

    @cached_property
    def row_columns(self) -> tuple[ColumnInfo, ...]:
        """Columns that a row change contains: public and not virtual generated, in table order."""
        return tuple(c for c in self.columns if not c.is_virtual)

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the primary key's columns; () if the table has no primary key."""
        if self.pk_is_handle:
            return tuple(c.name for c in self.columns if c.flag & t.FLAG_PRIMARY)
        index = self.primary_index
        return tuple(c.name for c in index.columns) if index else ()

    @cached_property
    def primary_index(self) -> IndexInfo | None:
        """The public primary index; None for an integer clustered key (pk_is_handle) or without a primary key."""
        return next((i for i in self.indexes if i.primary and i.state == PUBLIC), None)

    def find_column(self, name: str) -> ColumnInfo | None:
        """The visible column `name` (case-insensitive), or None."""
        return self._by_name.get(fold_name(name))

    def list_unique_keys(self) -> tuple[IndexInfo, ...]:
        """Public unique indexes, primary first. An integer clustered primary key is included as an index."""
        keys = [i for i in self.indexes if i.unique and i.state == PUBLIC and not i.primary]
        primary = self.primary_index or self._find_handle_index()
        return (*((primary,) if primary else ()), *keys)

    @cached_property
    def _identity(self) -> RowIdentity:
        if self.primary_key:
            return RowIdentity("primary", self.primary_key)
        for index in self.list_unique_keys():
            if self._identifies(index):
                return RowIdentity("unique", tuple(c.name for c in index.columns))
        return RowIdentity("row", tuple(c.name for c in self.row_columns))

    def find_identity(self) -> RowIdentity:
        """The key of a row: primary key, else first unique key (NOT NULL, no prefix, not virtual), else the whole
        row."""
        return self._identity

    @cached_property
    def _by_name(self) -> dict[str, ColumnInfo]:
        return {fold_name(c.name): c for c in self.columns}

    def _identifies(self, index: IndexInfo) -> bool:
        columns = [self.find_column(c.name) for c in index.columns]
        whole = all(c.length == t.UNSPECIFIED_LENGTH for c in index.columns)
        return whole and all(c is not None and c.not_null and not c.is_virtual for c in columns)

    def _find_handle_index(self) -> IndexInfo | None:
        if not self.pk_is_handle or not self.primary_key:
            return None
        column = next(c for c in self.columns if c.flag & t.FLAG_PRIMARY)
        return IndexInfo(0, "PRIMARY", (IndexColumn(column.name, column.offset, -1),), PUBLIC, True, True, True)


def _parse_default(value: object) -> str | None:
    return None if value is None else str(value)


def _decode_bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def _parse_length(value: int) -> int:
    # Some code paths of TiDB write the unspecified length as uint32.
    return t.UNSPECIFIED_LENGTH if value == 0xFFFFFFFF else value


def _list_partition_ids(partition: Json | None) -> tuple[int, ...]:
    if not partition:
        return ()
    return tuple(d["id"] for d in partition.get("definitions") or ())


def _read_id(data: object) -> object:
    return data.get("id") if isinstance(data, Mapping) else data

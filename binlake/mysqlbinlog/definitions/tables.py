"""A described table as TiDB's TableInfo, with stable ids: a column keeps its id as long as it exists.

An integer primary key of one column is the handle, as in TiDB's clustered tables; any other key is an index and rows
have a separate handle. `partitions` adds partitions. `source_create` of the TableInfo is the table's own CREATE TABLE
at the source, from which it can be recreated on a server of its family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from binlake.dialect.tokens import Token, find_closing, render
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.columns import build_column_info, is_virtual, to_tidb_charset
from binlake.mysqlbinlog.definitions.createtexts import read_column_definitions
from binlake.mysqlbinlog.definitions.descriptions import ColumnRow, IndexRow, TableDescription
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json, build_index_json, build_table_json, fold_name
from binlake.rows.schema.info import CREATE_KEY as CREATE_KEY

_UNIQUE_TYPES = frozenset({"BTREE", "HASH"})


def build_table_info(
    described: TableDescription,
    table_id: int,
    name: str,
    former: TableDef | None = None,
    names: Mapping[str, str | None] | None = None,
) -> Json:
    """The TableInfo of `described` under the name `name`.

    `former`: the previous definition, whose columns keep their ids. `names` maps a column's name to its name in
    `former` if that differs, and to None if `former` lacks the column; all names are folded. Raises SchemaError for
    what is not supported.
    """
    where = f"{described.db}.{described.name}"
    known = {fold_name(column.name): column for column in (former.all_columns if former is not None else ())}
    next_id = max((former.raw.get("max_col_id") or 0 if former is not None else 0, *(c.id for c in known.values())))
    primary = [row.column for row in described.indexes if row.index == "PRIMARY"]
    expressions = _read_generated_expressions(described)
    columns = []
    for offset, row in enumerate(described.columns):
        folded = fold_name(row.name)
        old = (names or {}).get(folded, folded)
        before = None if old is None else known.get(old)
        if before is None:
            next_id += 1
        id_and_offset = (before.id if before is not None else next_id, offset)
        column = build_column_info(
            row,
            described.flavor,
            where,
            id_and_offset,
            primary=row.name in primary,
            generated=expressions.get(row.name, ""),
        )
        columns.append(column if before is None else _add_origin(column, _preserve_origin(former, before)))
    handle = _is_handle(described, columns)
    indexes = _index_infos(described, former, drop_primary=handle)
    charset = _find_charset(described.collate)
    return {
        **build_table_json(table_id, name, columns, indexes, pk_is_handle=handle),
        "charset": charset, "collate": to_tidb_charset(described.collate), "comment": described.comment,
        "max_col_id": next_id, "max_idx_id": max((index["id"] for index in indexes), default=0),
        CREATE_KEY: described.create,
    }  # fmt: skip


def with_origin_defaults(info: Json, former: TableDef, moment_of: Mapping[str, str]) -> Json:
    """`info`, in which each column that `former` lacks states the value that older rows have: its default.

    `moment_of`: the current time by the type's SQL keyword, if known. For a default that is an expression the value is
    NULL or zero, since an expression has no single value.
    Raises SchemaError if a time is needed but not known.
    """
    had = {column.id for column in former.all_columns}
    return {**info, "cols": [c if c["id"] in had else _with_origin(c, moment_of) for c in info["cols"]]}


def _with_origin(column: Json, moment_of: Mapping[str, str]) -> Json:
    default = column["default"]
    if default is None or column["default_is_expr"]:
        return column
    if default == "CURRENT_TIMESTAMP" and column["type"]["Tp"] in t.MOMENTS:
        text = moment_of.get(t.look_up_type_name(column["type"]["Tp"], binary=False))
        if text is None:
            raise SchemaError(
                "a new column is filled with the time in a zone that this machine does not know",
                hint="install the time zones (tzdata) where the feeder runs", where={"column": column["name"]["O"]},
            )  # fmt: skip
        fsp = column["type"]["Decimal"]
        default = text[: 20 + fsp] if fsp else text[:19]
    return {**column, "origin_default": default, "origin_default_bit": column["default_bit"]}


def _preserve_origin(former: TableDef | None, before: ColumnInfo) -> Json:
    raw = next(c for c in (former.raw["cols"] if former is not None else ()) if c["id"] == before.id)
    return {key: raw.get(key) for key in ("origin_default", "origin_default_bit") if raw.get(key) is not None}


def _add_origin(column: Json, origin: Json) -> Json:
    """`column` with its former `origin`; without it if that is not a value of the column's current type.

    The rows have been converted since, and converting a value can do more than reading a default does.
    """
    with_origin = {**column, **origin}
    try:
        derive_filled_text(ColumnInfo.from_json(with_origin))
    except SchemaError:
        return column
    return with_origin


def _find_charset(collate: str) -> str:
    return to_tidb_charset(collate.partition("_")[0])


def _is_handle(described: TableDescription, columns: Sequence[Json]) -> bool:
    primary = [row for row in described.indexes if row.index == "PRIMARY"]
    if len(primary) != 1 or primary[0].length is not None:
        return False
    column = next(c for c in columns if c["name"]["O"] == primary[0].column)
    return column["type"]["Tp"] in t.INTEGERS and not column["generated_expr_string"]


def _index_infos(described: TableDescription, former: TableDef | None, *, drop_primary: bool) -> list[Json]:
    """TableInfo.index_info without indexes on expressions: TiDB has a hidden column for those, rows do not."""
    offsets = {row.name: offset for offset, row in enumerate(described.columns)}
    known = {fold_name(index.name): index.id for index in (former.indexes if former is not None else ())}
    next_id = max((former.raw.get("max_idx_id") or 0 if former is not None else 0, *known.values()), default=0)
    infos = []
    for name, group in groupby(described.indexes, key=lambda row: row.index):
        rows = list(group)
        if (drop_primary and name == "PRIMARY") or any(row.column is None for row in rows):
            continue
        index_id = known.get(fold_name(name))
        if index_id is None:
            next_id += 1
            index_id = next_id
        infos.append(_index_info(index_id, name, rows, offsets))
    return infos


def _index_info(index_id: int, name: str, rows: Sequence[IndexRow], offsets: Mapping[str, int]) -> Json:
    parts = [(row.column or "", offsets[row.column or ""]) for row in rows]
    unique = rows[0].unique and rows[0].type in _UNIQUE_TYPES
    info = build_index_json(index_id, name, parts, unique=unique, primary=name == "PRIMARY")
    for part, row in zip(info["idx_cols"], rows, strict=True):
        part["length"] = -1 if row.length is None else row.length
    return {**info, "is_invisible": not rows[0].visible}


def _read_generated_expressions(described: TableDescription) -> dict[str, str]:
    """The expression of each generated column, by name."""
    names = {row.name for row in described.columns if is_virtual(row) or _is_stored(row)}
    if not names:
        return {}
    definitions = read_column_definitions(described.create)
    return {name: _read_expression(definitions[name]) for name in names}


def _is_stored(row: ColumnRow) -> bool:
    words = row.extra.upper().split()
    return "PERSISTENT" in words or ("STORED" in words and "GENERATED" in words)


def _read_expression(definition: Sequence[Token]) -> str:
    at = next(at for at, token in enumerate(definition) if token.is_word("AS"))
    return render(definition[at + 2 : find_closing(definition, at + 1)])

"""Definitions as TiDB shows them: the JSON of columns, indexes, tables and DDL jobs, and the SQL text of a statement.

Fields that a real TiDB writes but that nothing here reads are left out (tidb-binlog 1.13).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json, build_name_json


@dataclass(frozen=True)
class Col:
    """A column: TiDB's type number, length, decimals (-1 = not given), flags, elements; defaults as text."""

    name: str
    tp: int = t.LONG
    flen: int = 11
    decimal: int = 0
    not_null: bool = False
    unsigned: bool = False
    charset: str = "binary"
    collate: str = "binary"
    default: str | None = None
    elems: tuple[str, ...] = ()

    @property
    def sql_type(self) -> str:
        """The type as in SHOW COLUMNS: `bigint(20) unsigned`, `varchar(64)`."""
        name = t.look_up_type_name(self.tp, self.charset == "binary")
        if self.elems:
            return name + "(" + ",".join(f"'{elem}'" for elem in self.elems) + ")"
        if self.tp == t.NEWDECIMAL:
            name += f"({self.flen},{self.decimal})"
        elif self.tp in (t.DATETIME, t.TIMESTAMP, t.DURATION):
            name += f"({self.decimal})" if self.decimal > 0 else ""
        elif self.tp not in t.BLOBS | t.DATES | {t.JSON, t.FLOAT, t.DOUBLE}:
            name += f"({self.flen})"
        return name + " unsigned" * self.unsigned

    @property
    def sql(self) -> str:
        """The column's part of a CREATE or ALTER statement."""
        null = " NOT NULL" if self.not_null else " NULL" if self.tp == t.TIMESTAMP else ""
        return (
            f"`{self.name}` {self.sql_type.upper() if not self.elems else self.sql_type}{null}{_render_default(self)}"
        )


def build_column_json(column: Col, column_id: int, offset: int, *, primary: bool = False) -> Json:
    """One element of TableInfo.cols."""
    flag = t.FLAG_PRIMARY | t.FLAG_NOT_NULL if primary else 0
    flag |= t.FLAG_NOT_NULL if column.not_null else 0
    flag |= t.FLAG_UNSIGNED if column.unsigned else 0
    return {
        "id": column_id, "name": build_name_json(column.name), "offset": offset,
        "origin_default": None, "default": column.default, "default_is_expr": False, "generated_expr_string": "",
        "generated_stored": False, "state": 5, "comment": "", "hidden": False, "version": 2,
        "type": {"Tp": column.tp, "Flag": flag, "Flen": column.flen, "Decimal": column.decimal,
                 "Charset": column.charset, "Collate": column.collate, "Elems": list(column.elems) or None},
    }  # fmt: skip


def create_sql(name: str, columns: Iterable[Col], keys: Iterable[str]) -> str:
    """CREATE TABLE; `keys`: its key clauses."""
    return f"CREATE TABLE `{name}` ({','.join([*(column.sql for column in columns), *keys])})"


def _render_default(column: Col) -> str:
    return "" if column.default is None else f" DEFAULT '{column.default}'"

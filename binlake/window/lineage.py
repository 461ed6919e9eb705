"""The tables that a stage or command read and wrote, reported for OpenLineage up to a limit.

Names and types, nothing of rows. It is reported with a result and stored nowhere else: a consumer of lineage reads it
there (docs/operate/alerts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

log = structlog.get_logger(__name__)

LINEAGE = "lineage"
"""In a result's detail: `{"wrote": [LineageTable.to_dict()…], "read": […]}`, each left out when empty."""
MOST_TABLES = 200
"""The most tables that an event names on a side. If there are more it names none, as a part would look complete."""
MOST_COLUMNS = 500
"""Columns of one event, each counted once for each table of the source that it may come from."""

Columns = Sequence[tuple[str, str]]
"""(name, type) each; an unknown type is empty."""


@dataclass(frozen=True)
class Table:
    """A table by name, with its columns as far as they are known."""

    db: str
    table: str
    columns: Columns = ()


@dataclass(frozen=True)
class LineageTable:
    """A table that was read or written under the target's name; `sources`: the tables of the source that share it.

    `copied` are the columns whose values are those of the source's columns of the same name.
    """

    table: Table
    copied: Sequence[str] = ()
    sources: Sequence[Table] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **_table_to_dict(self.table),
            "copied": list(self.copied),
            "sources": [_table_to_dict(source) for source in self.sources],
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> LineageTable:
        """The value of `to_dict`."""
        return cls(
            _table_from_dict(raw), tuple(raw["copied"]), tuple(_table_from_dict(source) for source in raw["sources"])
        )

    def without_columns(self) -> LineageTable:
        """The same without columns."""
        bare = [Table(source.db, source.table) for source in self.sources]
        return LineageTable(Table(self.table.db, self.table.table), (), bare)

    def without_sources(self) -> LineageTable:
        """Without the source's tables."""
        return LineageTable(self.table)


class LineageBudget:
    """How many tables and columns still fit into one event."""

    def __init__(self, sources: int = MOST_TABLES, columns: int = MOST_COLUMNS) -> None:
        self._sources = sources
        self._columns = columns

    def takes_sources(self, count: int) -> bool:
        """Take `count` tables of the source if they fit; whether they did."""
        fits = count <= self._sources
        self._sources -= count if fits else 0
        return fits

    def takes_columns(self, columns: int, sources: int) -> bool:
        """Take so many columns from so many tables if they fit; whether they did."""
        size = columns * max(sources, 1)
        fits = size <= self._columns
        self._columns -= size if fits else 0
        return fits


def limit_tables(tables: Sequence[LineageTable]) -> list[LineageTable]:
    """`tables` for one event, in order: a table's columns and sources completely or not at all."""
    budget = LineageBudget()
    return [_fit_into(table, budget) for table in tables] if len(tables) <= MOST_TABLES else []


def lineage_of(*, wrote: Iterable[LineageTable] = (), read: Iterable[LineageTable] = ()) -> dict[str, Any]:
    """`lineage_detail` of these tables; generators are read where their errors do no harm."""
    return lineage_detail(
        lambda: {"wrote": limit_tables(list(wrote)), "read": limit_tables([table.without_columns() for table in read])}
    )


def lineage_detail(make: Callable[[], Mapping[str, Sequence[LineageTable]]]) -> dict[str, Any]:
    """The addition to the detail of a result; empty, with a line in the log, where `make` fails."""
    try:
        sides = {side: [table.to_dict() for table in tables] for side, tables in make().items() if tables}
    except Exception:
        # The rows are written: do not apply them again because a picture is missing.
        log.exception("lineage_not_reported")
        return {}
    return {LINEAGE: sides} if sides else {}


def drop_lineage(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The detail of a result without lineage."""
    return {key: value for key, value in detail.items() if key != LINEAGE}


def _fit_into(one: LineageTable, budget: LineageBudget) -> LineageTable:
    if not budget.takes_sources(len(one.sources)):
        one = one.without_sources()
    return one if budget.takes_columns(len(one.table.columns), len(one.sources)) else one.without_columns()


def _table_to_dict(table: Table) -> dict[str, Any]:
    return {"db": table.db, "table": table.table, "columns": [list(column) for column in table.columns]}


def _table_from_dict(raw: dict[str, Any]) -> Table:
    return Table(raw["db"], raw["table"], tuple((name, kind) for name, kind in raw["columns"]))

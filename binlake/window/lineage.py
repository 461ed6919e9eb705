"""The tables that a stage or command has read and written, reported for OpenLineage up to a limit.

It has names and types, but no row values. Lineage is reported with a result and stored nowhere else: a consumer reads
it from the result (docs/operate/alerts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

log = structlog.get_logger(__name__)

LINEAGE = "lineage"
"""The key in a result's detail: `{"wrote": [LineageTable.to_dict()…], "read": […]}`, each omitted when empty."""
MOST_TABLES = 200
"""The maximum number of tables per side of an event. If there are more, it names none: a part would look complete."""
MOST_COLUMNS = 500
"""The maximum number of columns per event. A column counts once per source table that it may come from."""

Columns = Sequence[tuple[str, str]]
"""(name, type) of each column; an unknown type is empty."""


@dataclass(frozen=True)
class KnownTable:
    """A table's name, and its columns as far as they are known."""

    db: str
    table: str
    columns: Columns = ()


@dataclass(frozen=True)
class LineageTable:
    """A table that was read or written, under the target's name. `sources`: the source tables that share it.

    `copied`: the columns whose values come from the source's columns with the same name.
    """

    table: KnownTable
    copied: Sequence[str] = ()
    sources: Sequence[KnownTable] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **_encode_table(self.table),
            "copied": list(self.copied),
            "sources": [_encode_table(source) for source in self.sources],
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> LineageTable:
        """Parse what `to_dict` wrote."""
        return cls(_decode_table(raw), tuple(raw["copied"]), tuple(_decode_table(source) for source in raw["sources"]))

    def without_columns(self) -> LineageTable:
        """The same table without columns."""
        bare = [KnownTable(source.db, source.table) for source in self.sources]
        return LineageTable(KnownTable(self.table.db, self.table.table), (), bare)

    def without_sources(self) -> LineageTable:
        """The same table without source tables and columns copied from them."""
        return LineageTable(self.table)


class LineageBudget:
    """Counts how many tables and columns still fit into one event."""

    def __init__(self, sources: int = MOST_TABLES, columns: int = MOST_COLUMNS) -> None:
        self._sources = sources
        self._columns = columns

    def takes_sources(self, count: int) -> bool:
        """Reserve `count` source tables if they fit. Returns whether they did."""
        fits = count <= self._sources
        self._sources -= count if fits else 0
        return fits

    def takes_columns(self, columns: int, sources: int) -> bool:
        """Reserve `columns` for each of `sources` tables if they fit. Returns whether they did."""
        size = columns * max(sources, 1)
        fits = size <= self._columns
        self._columns -= size if fits else 0
        return fits


def limit_tables(tables: Sequence[LineageTable]) -> list[LineageTable]:
    """`tables` for one event, in order. A table's columns, and its sources, are included completely or not at all."""
    budget = LineageBudget()
    return [_fit_into(table, budget) for table in tables] if len(tables) <= MOST_TABLES else []


def build_lineage(*, wrote: Iterable[LineageTable] = (), read: Iterable[LineageTable] = ()) -> dict[str, Any]:
    """`build_lineage_detail` of these tables. Generators are consumed inside it, so their errors do no harm."""
    return build_lineage_detail(
        lambda: {"wrote": limit_tables(list(wrote)), "read": limit_tables([table.without_columns() for table in read])}
    )


def build_lineage_detail(make: Callable[[], Mapping[str, Sequence[LineageTable]]]) -> dict[str, Any]:
    """The lineage to add to a result's detail. If `make` fails, it is empty and the error is logged."""
    try:
        sides = {side: [table.to_dict() for table in tables] for side, tables in make().items() if tables}
    except Exception:
        # The rows are written. Missing lineage is no reason to apply them again.
        log.exception("lineage_not_reported")
        return {}
    return {LINEAGE: sides} if sides else {}


def drop_lineage(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The result's `detail` without lineage."""
    return {key: value for key, value in detail.items() if key != LINEAGE}


def _fit_into(one: LineageTable, budget: LineageBudget) -> LineageTable:
    if not budget.takes_sources(len(one.sources)):
        one = one.without_sources()
    return one if budget.takes_columns(len(one.table.columns), len(one.sources)) else one.without_columns()


def _encode_table(table: KnownTable) -> dict[str, Any]:
    return {"db": table.db, "table": table.table, "columns": [list(column) for column in table.columns]}


def _decode_table(raw: dict[str, Any]) -> KnownTable:
    return KnownTable(raw["db"], raw["table"], tuple((name, kind) for name, kind in raw["columns"]))

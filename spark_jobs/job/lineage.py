"""The lineage of a sink or command: the tables it wrote, with their columns, from definitions it already has.

It queries no server and reads no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from binlake.common.sql import Dialect
from binlake.ddl.definitions import WindowDefinitions
from binlake.ddl.targets import Naming, TargetTables
from binlake.rows.schema import DbInfo, TableDef
from binlake.spark_jobs.job.results import StageResult
from binlake.statements.generation import list_written_columns
from binlake.window.lineage import (
    LINEAGE,
    MOST_TABLES,
    Columns,
    KnownTable,
    LineageBudget,
    LineageTable,
    build_lineage_detail,
    drop_lineage,
    limit_tables,
)

Name = tuple[str, str]
Shown = Callable[[TableDef], tuple[Columns, Sequence[str]]]
"""Returns a table's columns at the place written to, and which of them are copied from the source."""

_LONGEST_TYPE = 200
"""Most characters of a type that are shown: an ENUM may have thousands of elements."""


@dataclass(frozen=True)
class WindowLineage:
    """Tables that a sink's window has changed: their `definitions`, and the source tables behind them at hi."""

    definitions: WindowDefinitions
    hi: int
    sources: Sources
    shown: Shown

    def describe(self, names: Iterable[Name]) -> dict[str, Any]:
        """The tables `names` (of the target) as a part of a result's detail."""
        return build_lineage_detail(lambda: {"wrote": self._build_tables(sorted(set(names)))})

    def _build_tables(self, names: Sequence[Name]) -> list[LineageTable]:
        budget = LineageBudget()
        return [self._build_table(name, budget) for name in names] if len(names) <= MOST_TABLES else []

    def _build_table(self, name: Name, budget: LineageBudget) -> LineageTable:
        table = self.definitions.find_at(*name, self.hi)
        if table is None or table.kind != "table":
            return LineageTable(KnownTable(*name))
        sources = self.sources.find_tables(table)
        if not budget.takes_sources(len(sources)):
            sources = []
        # Build the type texts only for tables whose columns fit the budget.
        if not budget.takes_columns(len(table.columns), len(sources)):
            return LineageTable(KnownTable(*name), (), [KnownTable(source.db, source.name) for source in sources])
        columns, copied = self.shown(table)
        known = {column.name for source in sources for column in source.columns}
        described = [KnownTable(source.db, source.name, list_columns(source)) for source in sources]
        # The other columns exist only at the target, or hold the name of a source table (extract columns of routes).
        return LineageTable(KnownTable(*name, columns), [column for column in copied if column in known], described)


class Sources:
    """The source tables behind the target's tables at a window's end; `tables` returns them if there are routes."""

    def __init__(self, naming: Naming, tables: Callable[[], TargetTables]) -> None:
        self._routed = bool(naming.rules.routes)
        self._make = tables

    def find_tables(self, table: TableDef) -> list[TableDef]:
        """The source tables that share the target's `table`."""
        if not self._routed:
            return [_build_whole_definition(table)]
        return self._tables.find_sources(table.db, table.name)

    @cached_property
    def _tables(self) -> TargetTables:
        return self._make()


def build_target_column_lister(dialect: Dialect) -> Shown:
    """Columns as the target has them; generated columns and the target's extra columns do not count as copied."""

    def list_target_columns(table: TableDef) -> tuple[Columns, Sequence[str]]:
        own = tuple((name, "") for name in table.own)
        return (*list_columns(table), *own), [column.name for column in list_written_columns(table, dialect)]

    return list_target_columns


def list_columns(table: TableDef) -> Columns:
    """The columns of a definition with their SQL types."""
    return tuple((column.name, _cut(column.type_text)) for column in table.columns)


def describe_table(table: TableDef) -> LineageTable:
    """The lineage entry of a table with its columns."""
    return LineageTable(KnownTable(table.db, table.name, list_columns(table)))


class Gathered:
    """The results of several windows. Only the last result with a lineage carries it: that of all windows together.

    Otherwise hundreds of windows would each hold and write their own. What stages derived is dropped too.
    """

    def __init__(self, results: Iterable[StageResult] = ()) -> None:
        self._results: list[StageResult] = []
        self._wrote: dict[Name, dict[str, Any]] = {}
        self._last = -1
        for result in results:
            self.add(result)

    def add(self, result: StageResult) -> None:
        """Add the next result."""
        if LINEAGE in result.detail:
            self._last = len(self._results)
            wrote = result.detail[LINEAGE].get("wrote", ())
            self._wrote |= {(one["db"], one["table"]): one for one in wrote}
        self._results.append(replace(result, detail=drop_lineage(result.detail), derived=None))

    def build_detail(self) -> dict[str, Any]:
        """The lineage of all results, as a part of a result's detail."""
        names = sorted(self._wrote)
        return build_lineage_detail(
            lambda: {"wrote": limit_tables([LineageTable.from_dict(self._wrote[name]) for name in names])}
        )

    def list_results(self) -> list[StageResult]:
        """All that was added."""
        results = list(self._results)
        if self._last >= 0:
            last = results[self._last]
            results[self._last] = replace(last, detail={**last.detail, **self.build_detail()})
        return results


def _build_whole_definition(table: TableDef) -> TableDef:
    """The source's own definition of `table`, with columns that a target of another shape leaves out."""
    if len(table.all_columns) == len(table.raw.get("cols") or ()):
        return table
    return TableDef.from_json(table.raw, DbInfo(table.db_id, table.db, "", "", {}))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TYPE else text[: _LONGEST_TYPE - 1] + "…"

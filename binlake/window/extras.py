"""Columns that routes add to row images: extract columns, and columns of other tables with the same target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from binlake.rows.codec.writers import filled_text
from binlake.rows.schema import SchemaState, TableDef, WindowSchemas
from binlake.window.shardlocks import Locks, Name
from binlake.window.targets import Naming, TargetTables

_Values = dict[str, str]


@dataclass(frozen=True)
class Extra:
    """Columns for rows of the source's `db`.`table` with since <= commit_ts < until."""

    db: str
    table: str
    since: int
    until: int
    values: _Values


def extras_of_window(schemas: WindowSchemas, naming: Naming, locks: Locks | None = None, lo: int = 0) -> list[Extra]:
    """All extras of the rows of a window above `lo`; empty without routes. Raises ConfigError.

    `locks`: the window's holds. A held row gets the columns that it lacks of the definition with which it is released.
    """
    extras: list[Extra] = []
    if not naming.rules.routes:
        return extras
    open_at: dict[tuple[str, str], Extra] = {}
    for since, until, state in schemas.spans():
        # The first span begins at the window's start; an operator's command at lo takes effect from the first row on.
        start, locked = max(since, lo + 1), locks or Locks()
        wanted = {
            (table.db, table.name): values
            for table, values in _extras_of_state(
                state, naming, locked.definitions_at(start), locked.held_tables(start)
            )
        }
        for name, extra in list(open_at.items()):
            if wanted.get(name) != extra.values:
                extras.append(open_at.pop(name))
        for name, values in wanted.items():
            began = open_at[name].since if name in open_at else since
            open_at[name] = Extra(*name, began, until, values)
    return [*extras, *open_at.values()]


def _extras_of_state(
    state: SchemaState, naming: Naming, shown: Mapping[Name, TableDef], held: Collection[Name]
) -> Iterator[tuple[TableDef, _Values]]:
    tables = TargetTables(state, naming, shown)
    shared = {source.id: group for group in tables.list_shared() for source in group}
    for table in naming.select_replicated(state.tables()):
        extracted = naming.rules.routes.extracted(table.db, table.name, table.source)
        values = {e.column: e.value for e in extracted}
        if table.id in shared and (table.db, table.name) not in held:
            values |= _missing_values(table, naming.merge(shared[table.id]))
        if values:
            yield table, values


def _missing_values(table: TableDef, target: TableDef) -> _Values:
    """The columns that `table` lacks at its target, with their origin defaults from the table that has them."""
    lacking = [column for column in target.row_columns if table.column(column.name) is None]
    texts = {column.name: filled_text(column) for column in lacking}
    return {name: text for name, text in texts.items() if text is not None}

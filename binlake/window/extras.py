"""Columns that routes add to row images: extract columns, and columns of other tables with the same target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from binlake.rows.codec.writers import derive_filled_text
from binlake.rows.schema import SchemaState, TableDef, WindowSchemas
from binlake.rows.schema.names import fold_pair
from binlake.window.shardlocks import Locks, Name, as_table
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


def list_extras(schemas: WindowSchemas, naming: Naming, locks: Locks | None = None, lo: int = 0) -> list[Extra]:
    """All extras of the rows of a window above `lo`; empty without routes. Raises ConfigError.

    `locks`: the window's holds. A held row gets the columns that it lacks of the definition with which it is released.
    """
    extras: list[Extra] = []
    if not naming.rules.routes:
        return extras
    open_at: dict[tuple[str, str], Extra] = {}
    for since, until, state in schemas.iterate_spans():
        # The first span begins at the window's start; an operator's command at lo takes effect from the first row on.
        start, locked = max(since, lo + 1), locks or Locks()
        wanted = {
            (table.db, table.name): values
            for table, values in _find_extras_of_state(
                state, naming, locked.list_definitions_at(start), locked.list_held_tables(start)
            )
        }
        for name, extra in list(open_at.items()):
            if wanted.get(name) != extra.values:
                extras.append(open_at.pop(name))
        for name, values in wanted.items():
            began = open_at[name].since if name in open_at else since
            open_at[name] = Extra(*name, began, until, values)
    return [*extras, *open_at.values()]


def _find_extras_of_state(
    state: SchemaState, naming: Naming, shown: Mapping[Name, TableDef], held: Collection[Name]
) -> Iterator[tuple[TableDef, _Values]]:
    tables = TargetTables(state, naming, shown)
    shared = {source.id: group for group in tables.list_shared() for source in group}
    for table in naming.select_replicated(state.list_tables()):
        extracted = naming.rules.routes.extract_columns(table.db, table.name, table.source)
        values = {e.column: e.value for e in extracted}
        if table.id in shared and (table.db, table.name) not in held:
            known = shown.get(fold_pair((table.db, table.name)))
            target = naming.merge(shared[table.id]) if known is None else naming.map_definition(as_table(known, table))
            values |= _find_missing_values(table, target)
        if values:
            yield table, values


def _find_missing_values(table: TableDef, target: TableDef) -> _Values:
    """The columns that `table` lacks at its target, with their origin defaults from the table that has them."""
    lacking = [column for column in target.row_columns if table.find_column(column.name) is None]
    texts = {column.name: derive_filled_text(column) for column in lacking}
    return {name: text for name, text in texts.items() if text is not None}

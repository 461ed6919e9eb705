"""What routes add to row images: extract columns, and columns that other tables of the same target have already."""

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
    """All that the rows of a window behind `lo` need, by place; without routes nothing. Raises ConfigError.

    `locks`: what is held in it: such a row gets what it lacks of the definition with which it is released.
    """
    found: list[Extra] = []
    if not naming.rules.routes:
        return found
    open_at: dict[tuple[str, str], Extra] = {}
    for since, until, state in schemas.spans():
        # The first span has no start of its own; what is commanded at lo holds from the first row on.
        place, held = max(since, lo + 1), locks or Locks()
        wanted = {
            (table.db, table.name): values
            for table, values in _of_state(state, naming, held.shown(place), held.held(place))
        }
        for name, extra in list(open_at.items()):
            if wanted.get(name) != extra.values:
                found.append(open_at.pop(name))
        for name, values in wanted.items():
            began = open_at[name].since if name in open_at else since
            open_at[name] = Extra(*name, began, until, values)
    return [*found, *open_at.values()]


def _of_state(
    state: SchemaState, naming: Naming, shown: Mapping[Name, TableDef], held: Collection[Name]
) -> Iterator[tuple[TableDef, _Values]]:
    tables = TargetTables(state, naming, shown)
    shared = {source.id: group for group in tables.shared() for source in group}
    for table in naming.kept(state.tables()):
        extracted = naming.rules.routes.extracted(table.db, table.name, table.source)
        values = {e.column: e.value for e in extracted}
        if table.id in shared and (table.db, table.name) not in held:
            values |= _values_it_lacks(table, naming.merge(shared[table.id]))
        if values:
            yield table, values


def _values_it_lacks(table: TableDef, target: TableDef) -> _Values:
    """What `table` lacks of its target: a row without it has the origin default, as at the table that has it."""
    lacking = [column for column in target.row_columns if table.column(column.name) is None]
    texts = {column.name: filled_text(column) for column in lacking}
    return {name: text for name, text in texts.items() if text is not None}

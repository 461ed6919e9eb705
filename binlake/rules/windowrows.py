"""The row filter of one window: the rules' expressions, compiled with the definitions that occur in the window."""

from __future__ import annotations

from binlake.rows.schema import WindowSchemas
from binlake.rules.rowfilter import ChangeFilter, RowFilter
from binlake.rules.rules import Rules


def build_row_filter(schemas: WindowSchemas, rules: Rules) -> RowFilter:
    """The filter for rows of a window; it uses the definition at each row's commit_ts (R-19). Raises ConfigError."""
    filters = []
    for db, table in rules.expressions.list_tables():
        for since, until, state in schemas.iterate_spans():
            definition = state.find(db, table)
            if definition is None or not rules.keeps(definition.db, definition.name):
                continue
            filters += [
                ChangeFilter(definition.db, definition.name, op, since, until, choices)
                for op, choices in rules.expressions.build_conditions(definition).items()
            ]
    return RowFilter(tuple(filters))

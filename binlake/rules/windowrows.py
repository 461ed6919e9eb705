"""What drops rows of one window: the expressions of the rules, read with the definitions that the window passes."""

from __future__ import annotations

from binlake.rows.schema import WindowSchemas
from binlake.rules.rowfilter import RowFilter, TableFilter
from binlake.rules.rules import Rules


def row_filter(schemas: WindowSchemas, rules: Rules) -> RowFilter:
    """What drops rows of a window, by the definition of each row's place (R-19). Raises ConfigError."""
    places = []
    for db, table in rules.expressions.tables():
        for since, until, state in schemas.spans():
            definition = state.find(db, table)
            if definition is None or not rules.keeps(definition.db, definition.name):
                continue
            places += [
                TableFilter(definition.db, definition.name, op, since, until, choices)
                for op, choices in rules.expressions.conditions(definition).items()
            ]
    return RowFilter(tuple(places))

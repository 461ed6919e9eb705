"""Rows that a strict session refuses only because of a virtual column, whose values no log has.

`n INT AS (s)` with the text 'abc' is 0 where somebody reads it, on every server. A TiDB, and a MySQL or MariaDB in a
lenient session, store such a row; MySQL refuses it in a strict session, and so does MariaDB in a REPLACE. Then the same
statement runs again, not strict, and counts only if every warning is about a virtual column: the values of all others
must fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from binlake.dialect.tokens import render, tokenize
from binlake.errors import BinlakeError
from binlake.statements.batch import find_statement_table
from binlake.target.session.failures import get_error_code

# Out of range, truncated, wrong value in a function, wrong value, too long, division by zero, no JSON (MariaDB).
_CODES = frozenset({1264, 1265, 1292, 1366, 1406, 1365, 4038})
_COLUMN = re.compile(r".* for column (?:`.*`\.)?[`'](.*)[`'] at row \d+", re.DOTALL)
_FUNCTION_CODES = frozenset({1292, 1365, 4038})
"""Of a function or a division: statements have them only in generated columns, and an UPDATE in its condition."""
_DEPRECATIONS = frozenset({1287, 1681, 3135})
_TIMES = frozenset({"date", "datetime", "time", "timestamp", "year"})
_NO_TIME = re.compile(r"Incorrect (?:date|datetime|time) value: ")
COLUMNS_SQL = (
    "SELECT COLUMN_NAME, DATA_TYPE, EXTRA LIKE '%%VIRTUAL GENERATED%%' FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)
"""What `TargetColumn` is made of."""


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target."""

    name: str
    data_type: str
    is_virtual: int


Warning = tuple[str, int, str]
"""Level, code and text, as SHOW WARNINGS has them."""


def find_refused_table(sql: str, refusal: BinlakeError) -> tuple[str, str] | None:
    """(database, table) of a statement that writes rows and was refused for a value; None for any other."""
    is_strict_write = sql.startswith(("INSERT INTO ", "REPLACE INTO ", "UPDATE `", "DELETE FROM `"))
    return find_statement_table(sql) if is_strict_write and get_error_code(refusal) in _CODES else None


def build_condition_query(sql: str) -> str | None:
    """A SELECT with the condition of an UPDATE or DELETE; None for a statement that inserts rows: it has none."""
    start = {"UPDATE": 1, "DELETE": 2}.get(sql[:6])
    if start is None:
        return None
    tokens = tokenize(sql)
    where = max((at for at, token in enumerate(tokens) if token.is_word("WHERE")), default=len(tokens))
    return f"SELECT 1 FROM {render(tokens[start : start + 3])} {render(tokens[where:])}"


def are_about_virtual(columns: Iterable[TargetColumn], warnings: Iterable[Warning], *, only_values: bool) -> bool:
    """Whether the warnings of a statement that writes a table of `columns` are only about values of virtual columns.

    `only_values`: whether none of them can be of the statement's condition.
    """
    by_name = {column.name: column for column in columns}
    return all(_is_about_virtual(by_name, warning, only_values=only_values) for warning in warnings)


def _is_about_virtual(columns: Mapping[str, TargetColumn], warning: Warning, *, only_values: bool) -> bool:
    level, code, text = warning
    if level == "Note" or code in _DEPRECATIONS:
        return True
    named = _COLUMN.fullmatch(text)
    if named is None:
        return only_values and code in _FUNCTION_CODES
    column = columns.get(named[1])
    if column is None:
        return False
    # MariaDB names the text that a function of a virtual column reads as a time.
    is_read = only_values and _NO_TIME.match(text) is not None and column.data_type not in _TIMES
    return bool(column.is_virtual) or is_read

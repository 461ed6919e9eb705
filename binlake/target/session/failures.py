"""Maps the target's error numbers to Binlake's errors: only this mapping decides about retries (S0-72, R-38, R-61).

Rows may be refused by a strict session only because of a virtual column, whose values no log has. `n INT AS (s)` with
the text 'abc' is 0 where somebody reads it, on every server. A TiDB, and a MySQL or MariaDB in a lenient session, store
such a row; MySQL refuses it in a strict session, and so does MariaDB in a REPLACE. Then the same statement runs again,
not strict, and counts only if every warning is about a virtual column: the values of all others must fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pymysql import err
from pymysql.constants import CR

from binlake.common.redaction import SEE_VALUES, are_row_values_shown, is_about_rows, redact_server_text, redact_sql
from binlake.common.sqllink import is_tls_refusal
from binlake.dialect.tokens import render, tokenize
from binlake.errors import BinlakeError, TargetBusy, TargetRefused, TargetUnavailable
from binlake.statements.batch import find_statement_table

_ACCESS = frozenset({1044, 1045, 1130, 1698, 1820, 1862})
_TLS = CR.CR_SSL_CONNECTION_ERROR
_PRIVILEGE = frozenset({1142, 1143, 1227, 1370, 1419})
# 3101: another member of a replication group wrote the same rows first; the transaction is rolled back.
_BUSY = frozenset({1205, 1213, 1020, 3101})
# 3032: MySQL's offline mode.
_UNREACHABLE = frozenset({2002, 2003, 2005, 1040, 1053, 1203, 1226, 3032})
_LOST = frozenset({0, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 1129, 2006, 2013, 2014, 2055, 4031})

MISSING = frozenset({1049, 1146})
"""Unknown database, unknown table."""
# Errors that affect every table: read-only, disk or memory full, failing file or engine, packet, time or lock limit.
_SERVER = frozenset(
    {3, 28, 1021, 1026, 1030, 1036, 1037, 1038, 1041, 1114, 1153, 1180, 1206, 1227, 1290, 1317, 1370, 1419, 1792, 1836,
     1969, 3024}
)  # fmt: skip

_SHOWN = 300
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
Warning = tuple[str, int, str]
"""Level, code and text, as SHOW WARNINGS has them."""


def translate_error(error: err.MySQLError, place: str, statement: str = "") -> BinlakeError:
    """The error to raise for `error` of the target at `place` (host:port), with a shortened `statement`."""
    code, text = _split_error(error)
    where: dict[str, object] = {"target": place, "code": code}
    if statement:
        where["statement"] = redact_sql(statement)[:_SHOWN]
        text = redact_server_text(text, statement)
    if code in _ACCESS:
        hint = "check target.user and target.password, and that the user may log in from this host"
        return TargetRefused(f"the target refuses the login: {text}", where={"target": place, "code": code}, hint=hint)
    if is_tls_refusal(error):
        hint = "check [target.security]: ssl-ca is the CA that signed the server's certificate, host a name in it"
        where = {"target": place, "code": _TLS}
        return TargetRefused(f"no TLS with the target: {text}", where=where, hint=hint)
    if code in _PRIVILEGE:
        return TargetRefused(
            f"the target's user lacks a privilege: {text}", where=where, hint="grant it; see the runbook"
        )
    if code in _BUSY:
        return TargetBusy(f"the target rolled back: {text}", where=where)
    if code in _UNREACHABLE:
        hint = "is the server up, and target.host and target.port right?"
        return TargetUnavailable(f"the target cannot be reached: {text}", where=where, hint=hint)
    if code in _LOST or isinstance(error, err.InterfaceError):
        return TargetUnavailable(f"the connection to the target broke: {text}", where=where)
    hint = "fix the target or the row at its source, then run the window again: the checkpoint has not moved"
    if is_about_rows(statement) and not are_row_values_shown():
        hint += f"; {SEE_VALUES}"
    return TargetRefused(f"the target refuses a statement: {text}", where=where, hint=hint)


def get_error_code(error: BinlakeError) -> int:
    """The server's error number in an error of `translate_error`; 0 if it has none."""
    return int(error.where.get("code", 0))


def is_server_wide(error: BinlakeError) -> bool:
    """True when the server would refuse any other table as well."""
    return get_error_code(error) in _SERVER | _ACCESS | {_TLS}


def _split_error(error: err.MySQLError) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else "no answer"
    return code, text or "no answer"


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target."""

    name: str
    data_type: str
    is_virtual: int


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

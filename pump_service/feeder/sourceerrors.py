"""A server's errors while definitions and rows of a source are read, classified by their numbers: whether to wait, to
read again, or to refuse."""

from __future__ import annotations

from pymysql import err
from pymysql.constants import ER

from binlake.errors import BinlakeError, SourceRefused, SourceUnavailable

_PRIVILEGES = frozenset(
    {
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
    }
)
_MOVED = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.BAD_FIELD_ERROR, ER.TABLE_DEF_CHANGED})
"""A statement named something that a DDL has removed since: a new attempt reads the definitions again."""


def build_source_error(error: err.Error) -> BinlakeError:
    """The error for what `error` says: SourceUnavailable if a new attempt may succeed."""
    code, text = (error.args[0] if error.args else 0), error.args[-1:]
    if code in _MOVED:
        return SourceUnavailable(f"the source's definitions changed while the load read them: {code} {text}")
    if code == ER.LOCK_WAIT_TIMEOUT:
        return SourceUnavailable(
            f"the load waits for a lock at the source: {code} {text}",
            hint="another session there holds it (SHOW FULL PROCESSLIST): a DDL, LOCK TABLES, or a long statement",
        )
    if code in _PRIVILEGES or isinstance(error, err.ProgrammingError):
        return SourceRefused(
            f"the source refused the load: {code} {text}",
            hint="the user needs SELECT, RELOAD (or LOCK TABLES), REPLICATION SLAVE and REPLICATION CLIENT",
        )
    return SourceUnavailable(f"the source interrupted the load: {code} {text}")

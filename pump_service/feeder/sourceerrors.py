"""A source's errors by their numbers and texts: whether to wait, to read again, or to refuse, and what to do."""

from __future__ import annotations

import re

import pymysql
from pymysql import err
from pymysql.constants import ER

from binlake.errors import BinlakeError, LostRange, SourceRefused, SourceUnavailable

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

_PURGED_GTIDS = 1789  # MySQL: ER_MASTER_HAS_PURGED_REQUIRED_GTIDS
_TWIN = 4052  # MariaDB: ER_SLAVE_SAME_ID
_PURGED_HINT = (
    "load the source again (`binlake bootstrap`), or read another server of the topology that still has them; keep"
    " logs longer: binlog_expire_logs_seconds (MySQL), expire_logs_days (MariaDB)"
)
_RESET_HINT = (
    "if its log was reset or the server was restored, load the source again (`binlake bootstrap`); if the feeder is"
    " to read another server, that server must have received everything that was read"
)
_BY_TEXT = (
    (r"purged|could not find first log file", "purged"),
    (r"has more GTIDs than|not in the (master|source|primary)'s binlog|position > file size|has been reset", "reset"),
    (r"same server_(uuid|id)", "twin"),
    (r"max_allowed_packet", "packet"),
    (r"anonymous transaction", "anonymous"),
)


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


def build_dump_error(error: pymysql.err.Error) -> BinlakeError:
    """The error for a dump that the server refused or ended."""
    code, text = error.args[0], str(error.args[-1])
    if code in (ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR):
        return SourceRefused(
            f"the user may not read the log: {text}",
            hint="GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO its user (MariaDB: also BINLOG MONITOR)",
        )
    if code not in (ER.MASTER_FATAL_ERROR_READING_BINLOG, _PURGED_GTIDS, _TWIN):
        return SourceUnavailable(f"the server ended the log: {code} {text}")
    for pattern, kind in _BY_TEXT:
        if re.search(pattern, text, re.IGNORECASE):
            return _build_fatal_error(kind, text)
    return SourceRefused(f"the server cannot read its own log: {text}", hint=_RESET_HINT)


def _build_fatal_error(kind: str, text: str) -> BinlakeError:
    if kind == "purged":
        return build_purged_error(text)
    if kind == "reset":
        return SourceRefused(f"the server does not have what was already read: {text}", hint=_RESET_HINT)
    if kind == "twin":
        return SourceRefused(
            f"another replica has the feeder's server id: {text}",
            hint="`server-id` of the source in feeder.toml must be unique; is a second feeder running?",
        )
    if kind == "anonymous":
        return SourceRefused(
            f"transactions without GTIDs have not been read yet: {text}",
            hint="SET GLOBAL gtid_mode = ON_PERMISSIVE until the feeder has read them, then ON",
        )
    return SourceRefused(
        f"an event is larger than the server can send: {text}", hint="SET GLOBAL max_allowed_packet = 1073741824"
    )


def build_purged_error(what: str) -> LostRange:
    """The error for a log that is purged from the position on."""
    return LostRange(f"the source has purged its log from the position on: {what}", hint=_PURGED_HINT)


def build_reset_error(what: str) -> SourceRefused:
    """The error for a server that once had what it now lacks."""
    return SourceRefused(f"the source's log was reset, or the server restored: {what}", hint=_RESET_HINT)


def build_missing_transactions_error(what: str) -> SourceUnavailable:
    """The error for a server of the topology that does not have all that was read from another one."""
    return SourceUnavailable(
        f"the server lacks transactions that were read from another one: {what}",
        hint="it may have them soon; if it will never get them (errant, or lost at a fail-over), load the source again"
        " (`binlake bootstrap`)",
    )

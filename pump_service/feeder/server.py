"""A MySQL or MariaDB server as a client sees it: how to connect, which family it is, where its log ends, its errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql import err
from pymysql.constants import ER
from pymysql.cursors import DictCursor

from binlake.common.sqllink import SqlLink, build_tls_arguments, is_tls_refusal, show_bytes_too
from binlake.errors import BinlakeError, LostRange, SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.events.gtid import parse_gtid_set
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.mysqlbinlog.tablerows.link import Link, ask
from binlake.pump_service.feeder.settings import ServerSection, TrackerSection

__all__ = [
    "Link",
    "ask",
    "ask_by_name",
    "build_connect_arguments",
    "build_dump_error",
    "build_missing_transactions_error",
    "build_purged_error",
    "build_reset_error",
    "build_source_error",
    "connect",
    "derive_flavor",
    "format_address",
    "read_log_end",
    "read_log_files",
    "read_variables",
]

Address = tuple[str, int]
_CONNECT_S = 10.0
_CREDENTIALS = frozenset({ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})
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


def format_address(address: Address) -> str:
    """`host:port`."""
    return f"{address[0]}:{address[1]}"


def connect(server: ServerSection, address: Address | None = None, **arguments: Any) -> Link:
    """A session at `address` (None: the server's own), autocommit on; encrypted if the server supports it.

    Raises SourceUnavailable, SourceRefused.
    """
    own = build_connect_arguments(server, address)
    where = {"server": f"{own['host']}:{own['port']}"}
    try:
        link = SqlLink(**{**own, "autocommit": True, **arguments})
        show_bytes_too(link)
        return link
    except pymysql.err.Error as error:
        text = error.args[1] if len(error.args) > 1 else error
        if error.args and error.args[0] in _CREDENTIALS:
            raise SourceRefused(
                f"the server refuses the user: {text}",
                hint="user and password of the source in feeder.toml; `ssl-cert` where the user needs a certificate",
                where=where,
            ) from None
        remedy = "the section `security` of this server in feeder.toml, and the server's own certificate"
        hint = remedy if is_tls_refusal(error) else ""
        raise SourceUnavailable(f"the server cannot be reached: {text}", where=where, hint=hint) from None


def build_connect_arguments(server: ServerSection, address: Address | None = None) -> dict[str, Any]:
    """pymysql's arguments for a session at `address` (None: the server's own). Raises ConfigError."""
    host, port = address or (server.host, server.port)
    own = {
        "host": host, "port": port, "user": server.user, "password": server.password, "charset": "utf8mb4",
        "connect_timeout": _CONNECT_S,
    }  # fmt: skip
    return own | build_tls_arguments(server.security, plain_at=host)


def ask_by_name(link: Link, query: str, arguments: Sequence[object] = ()) -> list[dict[str, Any]]:
    """`ask`, each row by upper-case column name: servers spell the columns of information_schema in either case."""
    with link.cursor(DictCursor) as cursor:
        cursor.execute(query, tuple(arguments) or None)
        return [{name.upper(): value for name, value in row.items()} for row in cursor.fetchall()]


def read_variables(link: Link) -> dict[str, str]:
    """The server's global variables by lower-case name. Raises pymysql's errors."""
    return {str(name).lower(): str(value) for name, value in ask(link, "SHOW GLOBAL VARIABLES")}


def read_logs_cascades(link: Link) -> bool:
    """Whether the server logs rows that foreign keys change: MySQL from 9.6, unless InnoDB itself changes them."""
    found = ask(link, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return bool(found) and str(found[0][1]).upper() == "OFF"


def derive_flavor(link: Link) -> Flavor:
    """The family of the server."""
    version = str(link.server_version)  # type: ignore[attr-defined]
    return Flavor.MARIADB if "mariadb" in version.lower() else Flavor.MYSQL


def build_tracker_arguments(tracker: TrackerSection) -> dict[str, Any]:
    """pymysql's arguments for a session at a tracker. Raises ConfigError."""
    limit = tracker.statement_timeout
    return build_connect_arguments(tracker) | {"read_timeout": limit, "write_timeout": limit}


def read_log_end(link: Link) -> BinlogPosition:
    """Where the server's log ends now. Raises SourceRefused if it writes none."""
    flavor = derive_flavor(link)
    rows = _log_status(link)
    if not rows:
        raise SourceRefused("the server writes no binary log", hint="start it with --log-bin and binlog_format = ROW")
    file, offset = str(rows[0][0]), int(rows[0][1])
    if flavor is Flavor.MARIADB:
        gtids = str(ask(link, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0] or "")
    else:
        has_gtids = str(ask(link, "SELECT @@GLOBAL.gtid_mode")[0][0]).upper() == "ON"
        gtids = str(rows[0][4]) if has_gtids else ""
    return BinlogPosition(file, offset, parse_gtid_set(flavor, gtids).format_text())


def _log_status(link: Link) -> list[tuple[Any, ...]]:
    try:
        return ask(link, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError:  # before MySQL 8.2; MariaDB
        return ask(link, "SHOW MASTER STATUS")


def read_log_files(link: Link) -> dict[str, int]:
    """The server's log files in order, with their sizes. Raises pymysql's errors."""
    return {str(row[0]): int(row[1]) for row in ask(link, "SHOW BINARY LOGS")}


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

"""A MySQL or MariaDB server as a client sees it: how to connect, which family it is, where its log ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.constants import ER
from pymysql.cursors import DictCursor

from binlake.base.sqllink import SqlLink, build_tls_arguments, is_tls_refusal, show_bytes_too
from binlake.errors import SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.events.gtid import parse_gtid_set
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.mysqlbinlog.tablerows.link import Link, ask
from binlake.pump_service.feeder.settings import ServerSection, TrackerSection

__all__ = [
    "Link",
    "ask",
    "ask_by_name",
    "build_connect_arguments",
    "connect",
    "derive_flavor",
    "format_address",
    "read_log_end",
    "read_log_files",
    "read_variables",
]  # fmt: skip

Address = tuple[str, int]

_CONNECT_S = 10.0
_CREDENTIALS = frozenset({ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})


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

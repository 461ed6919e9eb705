"""Connections to servers with MySQL's protocol: TLS if the server offers it, and sessions without its global settings.

pymysql creates a context of TLS for each connection, which reads all certificates of the system: 22 ms of CPU
(measured). So a process has one.

A new session starts with the server's global values, which its people choose for their own programs: `sql_select_limit`
shortens a full load, `sql_if_exists` makes a DDL do nothing, `completion_type` begins transactions. So each session
first sets all of `VARIABLES` that the server has; what a session needs otherwise, it sets after them. A variable that
is not here only decides how fast something is, how long the server waits, or what it logs.
"""

from __future__ import annotations

import codecs
import ssl
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pymysql
import structlog
from pymysql import err
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.cursors import Cursor

from binlake.common.secrets import load_tls_files
from binlake.common.sections import SqlSecurity

log = structlog.get_logger()

_NO_LIMIT = "18446744073709551615"
_WAIT_S = 86_400
"""Seconds that a session may be silent: a feeder and a full load keep theirs while they wait for others."""

VARIABLES: Mapping[str, str] = {
    # how statements are parsed, and what values mean in them
    "sql_mode": "''",
    "time_zone": "'+00:00'",
    "div_precision_increment": "4",
    "default_week_format": "0",
    "lc_time_names": "'en_US'",
    "lc_messages": "'en_US'",
    "block_encryption_mode": "'aes-128-ecb'",
    "default_regex_flags": "''",
    "old_mode": "'UTF8_IS_UTF8MB3'",
    "windowing_use_high_precision": "1",
    "sql_auto_is_null": "0",
    "big_tables": "0",
    # which rows a statement returns
    "sql_select_limit": _NO_LIMIT,
    "sql_big_selects": "1",
    "group_concat_max_len": "1073741824",
    "max_sort_length": "1024",
    "cte_max_recursion_depth": "1000",
    "max_recursive_iterations": "1000",
    "system_versioning_asof": "DEFAULT",
    "tidb_read_staleness": "0",
    "tidb_read_consistency": "'strict'",
    "tidb_low_resolution_tso": "0",
    "tidb_enable_external_ts_read": "0",
    "tidb_replica_read": "'leader'",
    # how a server shows definitions
    "sql_quote_show_create": "1",
    "show_create_table_verbosity": "0",
    "show_gipk_in_create_table_and_information_schema": "1",
    "explain_format": "'TRADITIONAL'",
    "sql_notes": "1",
    # transactions
    "completion_type": "0",
    "tx_isolation": "'REPEATABLE-READ'",
    "transaction_isolation": "'REPEATABLE-READ'",
    "tx_read_only": "0",
    "transaction_read_only": "0",
    "innodb_snapshot_isolation": "0",
    # what a statement writes or refuses
    "sql_safe_updates": "0",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "check_constraint_checks": "1",
    "auto_increment_increment": "1",
    "auto_increment_offset": "1",
    "system_versioning_insert_history": "0",
    "system_versioning_alter_history": "'ERROR'",
    "enable_cascade_triggers": "0",
    # what a DDL makes
    "explicit_defaults_for_timestamp": "1",
    "default_storage_engine": "'InnoDB'",
    "default_tmp_storage_engine": "'InnoDB'",
    "sql_if_exists": "0",
    "alter_algorithm": "'DEFAULT'",
    "innodb_compression_default": "0",
    "innodb_ft_enable_stopword": "1",
    # limits after which a statement or a session ends
    "max_execution_time": "0",
    "max_statement_time": "0",
    "idle_transaction_timeout": "0",
    "idle_readonly_transaction_timeout": "0",
    "idle_write_transaction_timeout": "0",
    "lock_wait_timeout": f"{_WAIT_S}",
    "innodb_lock_wait_timeout": "50",
    "wait_timeout": f"{_WAIT_S}",
    "net_read_timeout": "3600",
    "net_write_timeout": "3600",
    "max_session_mem_used": "9223372036854775807",
    "tmp_disk_table_size": _NO_LIMIT,
}
"""Values, as SQL, of variables that every user may set in a session."""

PRIVILEGED: Mapping[str, str] = {
    "sql_require_primary_key": "0",
    "sql_generate_invisible_primary_key": "0",
    "default_table_encryption": "0",
    "default_collation_for_utf8mb4": "'utf8mb4_0900_ai_ci'",
    "restrict_fk_on_non_standard_key": "0",
    "binlog_format": "'ROW'",
    "enforce_storage_engine": "NULL",
    "old_alter_table": "0",
    "innodb_strict_mode": "1",
    "max_error_count": "1024",
}
"""Values of variables that need a privilege which the user may not have: set only where the server's differ."""

_OTHERWISE: Mapping[str, str] = {"old_mode": "''"}
"""Values for servers that do not know those above: MariaDB before 10.6 has no UTF8_IS_UTF8MB3, and needs none."""

_TIDB: Mapping[str, str] = {"default_collation_for_utf8mb4": "'utf8mb4_bin'"}
"""TiDB's own values: a TiDB source's DDL means these where its text names no collation."""

_LIMITS = (
    "sql_select_limit",
    "max_execution_time",
    "max_statement_time",
    "max_session_mem_used",
    "tmp_disk_table_size",
)
"""What could shorten or refuse the answer to the question which variables a server has."""

_UNKNOWN = 1193
_BAD_VALUE = 1231
_NEVER_SETTABLE = frozenset({_UNKNOWN, 1229, _BAD_VALUE, 1232, 1235, 1238, 1286, 1621, 1649})
"""The server has no such variable, none that a session may set, or none of this value, whoever asks."""
_NOT_SETTABLE = _NEVER_SETTABLE | {1227}
_names: dict[str, frozenset[str]] = {}
"""By version of a server, the variables that a session may set there."""
_values: dict[str, dict[str, str]] = {}
"""By version of a server, the values of `_OTHERWISE` that it needs."""
_refused: set[str] = set()

Link: TypeAlias = "Connection[Any]"


def set_variables(link: Link) -> None:
    """Set the variables that this server has. Raises pymysql's errors."""
    names = _find_names(link)
    wanted = {**VARIABLES, **_values.get(_version(link), {})}
    _set(link, {name: value for name, value in wanted.items() if name in names})
    own = {**PRIVILEGED, **_TIDB} if "tidb" in _version(link).lower() else PRIVILEGED
    wanted = {name: value for name, value in own.items() if name in names}
    # Not `@@SESSION.`: that fails for all of them if one has no value of a session on this server.
    if wanted:
        shown = ", ".join(f"@@{name} <=> {value}" for name, value in wanted.items())
        (same,) = _query(link, f"SELECT {shown}")
        _set(link, {name: value for (name, value), is_set in zip(wanted.items(), same, strict=True) if not is_set})


def _set(link: Link, values: Mapping[str, str], *, unknown_is_fine: bool = False) -> None:
    if not values:
        return
    try:
        link.query("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in values.items()))
    except err.MySQLError as error:
        if error.args[0] not in _NOT_SETTABLE:
            raise
        if error.args[0] == _UNKNOWN and unknown_is_fine:
            return
        if len(values) > 1:
            for name, value in values.items():
                _set(link, {name: value})
            return
        ((name, value),) = values.items()
        if error.args[0] == _BAD_VALUE and value != _OTHERWISE.get(name, value):
            _values.setdefault(_version(link), {})[name] = _OTHERWISE[name]
            _set(link, {name: _OTHERWISE[name]})
            return
        _leave_out(link, name, error)


def _leave_out(link: Link, name: str, error: err.MySQLError) -> None:
    """The session goes on without variable `name`, which the server refused; so do later ones if it always will."""
    if name not in _refused:
        _refused.add(name)  # one warning in a process: each session asks again
        log.warning("session_variable_not_set", variables=[name], reason=str(error.args[-1]))
    if error.args[0] in _NEVER_SETTABLE:
        # Otherwise each later session would set all variables one by one.
        version = _version(link)
        _names[version] = _names.get(version, frozenset()) - {name}


def _find_names(link: Link) -> frozenset[str]:
    """The variables of this server's version, asked once in a process; no lock, which a silent server would hold."""
    version = _version(link)
    if version not in _names:
        for name in _LIMITS:
            _set(link, {name: VARIABLES[name]}, unknown_is_fine=True)
        _names[version] = frozenset(str(row[0]).lower() for row in _query(link, "SHOW SESSION VARIABLES"))
    return _names[version]


def _version(link: Link) -> str:
    return str(link.server_version)  # type: ignore[attr-defined]


def _query(link: Link, sql: str) -> list[tuple[Any, ...]]:
    with Cursor(link) as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts that need no TLS: nobody can intercept local connections."""


_BYTES_TOO = "utf8-and-bytes"


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name != _BYTES_TOO.replace("-", "_"):
        return None
    return codecs.CodecInfo(
        name=_BYTES_TOO,
        encode=lambda text, _="": codecs.utf_8_encode(text, "surrogateescape"),
        decode=lambda data, _="": codecs.utf_8_decode(data, "surrogateescape", True),
    )


codecs.register(_find_codec)


def show_bytes_too(link: pymysql.Connection[Any]) -> None:
    """Let `link` show bytes that are not UTF-8 as lone surrogates, where it would fail: MariaDB has them in SHOW
    CREATE TABLE."""
    link.encoding = _BYTES_TOO


def build_tls_arguments(security: SqlSecurity, *, plain_at: str = "") -> dict[str, Any]:
    """The arguments of a `SqlLink` for `security`. Raises ConfigError.

    `plain_at`: the server's host, if without any setting a host of `LOOPBACK` shall get no TLS, which costs CPU.
    """
    if security.mode == "preferred":
        return {"ssl_disabled": True} if plain_at in LOOPBACK and not security.ssl_mode else {}
    if security.mode == "disabled":
        return {"ssl_disabled": True}
    return {"ssl": _trust_system() if security.mode == "verify-identity" and not any(security.list_files())
            else _build_context(security)}  # fmt: skip


def is_tls_refusal(error: BaseException) -> bool:
    """Whether pymysql's `error` means that one side does not accept the other's TLS: trying again does not help."""
    cause = getattr(error, "original_exception", None)
    return isinstance(cause, ssl.SSLCertVerificationError) or error.args[:1] == (CR.CR_SSL_CONNECTION_ERROR,)


@cache
def _trust_system() -> ssl.SSLContext:
    return _build_context(SqlSecurity(ssl_mode="verify-identity"))


def _build_context(security: SqlSecurity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = security.mode == "verify-identity"
    context.verify_mode = ssl.CERT_REQUIRED if security.checks_certificate else ssl.CERT_NONE
    if security.checks_certificate and not security.ssl_ca:
        context.load_default_certs()
    load_tls_files(context, *(Path(file) if file else None for file in security.list_files()))
    return context


class SqlLink(pymysql.Connection):
    """A `pymysql.Connection` with its arguments; a context that is passed as `ssl` is used unchanged."""

    _context: ClassVar[ssl.SSLContext | None] = None

    def connect(self, sock: Any = None) -> None:
        """As pymysql does, then set the session's variables."""
        super().connect(sock)
        try:
            set_variables(self)
        except BaseException:
            self._force_close()  # type: ignore[attr-defined]
            raise

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp:
            return super()._create_ssl_ctx(sslp)  # type: ignore[no-any-return,misc]
        if SqlLink._context is None:
            SqlLink._context = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
        return SqlLink._context

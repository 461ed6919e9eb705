"""Hostile values of the global variables with which a server begins each session, all in force at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymysql.connections import Connection
from support.mariadb import MariaDb

HOSTILE = {
    "sql_mode": "'ANSI,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE'", "time_zone": "'+05:30'", "div_precision_increment": "0",
    "default_week_format": "3", "lc_time_names": "'de_DE'", "lc_messages": "'de_DE'",
    "block_encryption_mode": "'aes-256-cbc'", "default_regex_flags": "'EXTENDED'", "old_mode": "''",
    "windowing_use_high_precision": "0", "sql_auto_is_null": "1", "big_tables": "1", "sql_select_limit": "2",
    "sql_big_selects": "0", "group_concat_max_len": "4", "max_sort_length": "64", "cte_max_recursion_depth": "1",
    "max_recursive_iterations": "1", "system_versioning_asof": "'2020-01-01 00:00:00'", "sql_quote_show_create": "0",
    "show_create_table_verbosity": "1", "show_gipk_in_create_table_and_information_schema": "0",
    "explain_format": "'JSON'", "sql_notes": "0", "completion_type": "'CHAIN'", "tx_isolation": "'READ-UNCOMMITTED'",
    "transaction_isolation": "'READ-UNCOMMITTED'", "tx_read_only": "1", "transaction_read_only": "1",
    "innodb_snapshot_isolation": "1", "sql_safe_updates": "1", "foreign_key_checks": "0", "unique_checks": "0",
    "check_constraint_checks": "0", "auto_increment_increment": "7", "auto_increment_offset": "3",
    "system_versioning_insert_history": "1", "system_versioning_alter_history": "'KEEP'",
    "enable_cascade_triggers": "1", "explicit_defaults_for_timestamp": "0", "default_storage_engine": "'MyISAM'",
    "default_tmp_storage_engine": "'MyISAM'", "sql_if_exists": "1", "alter_algorithm": "'INSTANT'",
    "innodb_compression_default": "1", "innodb_ft_enable_stopword": "0", "max_execution_time": "900",
    "max_statement_time": "0.9", "idle_transaction_timeout": "1", "idle_readonly_transaction_timeout": "1",
    "idle_write_transaction_timeout": "1", "lock_wait_timeout": "1", "innodb_lock_wait_timeout": "1",
    "wait_timeout": "2", "net_read_timeout": "1", "net_write_timeout": "1", "max_session_mem_used": "8388608",
    "tmp_disk_table_size": "1024", "sql_require_primary_key": "1", "sql_generate_invisible_primary_key": "1",
    "default_table_encryption": "1", "default_collation_for_utf8mb4": "'utf8mb4_general_ci'",
    "restrict_fk_on_non_standard_key": "1", "binlog_format": "'STATEMENT'", "enforce_storage_engine": "'MyISAM'",
    "old_alter_table": "1", "innodb_strict_mode": "0", "max_error_count": "0",
}  # fmt: skip


_EMPTY = {"enforce_storage_engine": "NULL", "default_tmp_storage_engine": "NULL"}
"""How a variable is set to nothing, if not by an empty text."""


def ask(link: Connection[Any], sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query or call, in a session that exists."""
    with link.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


@contextmanager
def hostile(server: MariaDb) -> Iterator[Connection[Any]]:
    """A session as people use it, at a server that gives hostile values to all sessions that begin later."""
    with server.connect() as admin:
        former = set_hostile_globals(admin)
        try:
            yield admin
        finally:
            restore_globals(admin, former)


def set_hostile_globals(admin: Connection[Any], leave: Collection[str] = ()) -> dict[str, str]:
    """Set those of `HOSTILE` that the server has, except `leave`; returns the former values."""
    known = {str(name).lower(): str(value) for name, value in ask(admin, "SHOW GLOBAL VARIABLES")}
    former = {name: known[name] for name in HOSTILE if name in known and name not in leave}
    for name in former:
        ask(admin, f"SET GLOBAL {name} = {HOSTILE[name]}")
    return former


def restore_globals(admin: Connection[Any], former: Mapping[str, str]) -> None:
    """Set former values again."""
    for name in reversed(list(former)):
        ask(admin, f"SET GLOBAL {name} = {_write_literal(name, former[name])}")


def _write_literal(name: str, value: str) -> str:
    if re.fullmatch(r"-?\d+(\.\d+)?|DEFAULT", value):
        return value
    return repr(value) if value else _EMPTY.get(name, "''")

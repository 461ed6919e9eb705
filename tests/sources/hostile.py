"""Global settings of a server that change what statements of a session return or do, unless the session sets its own.

All are set at once: a session of the product that leaves one of them to the server reads or writes something else.
"""

from __future__ import annotations

from collections.abc import Mapping

from support.mariadb import MariaDb, execute, rows

_BOTH: Mapping[str, str] = {
    "sql_select_limit": "2",
    "sql_mode": "'ANSI,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE,NO_ZERO_IN_DATE"
    ",NO_UNSIGNED_SUBTRACTION'",
    "time_zone": "'-11:00'",
    "group_concat_max_len": "4",
    "max_sort_length": "4",
    "lc_time_names": "'de_DE'",
    "div_precision_increment": "0",
    "default_week_format": "7",
    "transaction_isolation": "'READ-UNCOMMITTED'",
    "transaction_read_only": "ON",
    "autocommit": "OFF",
    "completion_type": "RELEASE",
    "sql_auto_is_null": "ON",
    "sql_safe_updates": "ON",
    "sql_big_selects": "OFF",
    "max_join_size": "1",
    "sql_quote_show_create": "OFF",
    "explicit_defaults_for_timestamp": "OFF",
    "foreign_key_checks": "OFF",
    "unique_checks": "OFF",
    "default_storage_engine": "'MEMORY'",
    "character_set_server": "'latin1'",
    "collation_connection": "'latin1_german2_ci'",
    "character_set_client": "'latin1'",
    "character_set_results": "'latin1'",
}
_OWN: Mapping[str, Mapping[str, str]] = {
    "mariadb": {
        "system_versioning_asof": "'2001-01-01 00:00:00'",
        "max_statement_time": "0.05",
        "max_recursive_iterations": "1",
        "standard_compliant_cte": "OFF",
        "old_mode": "''",
        "sql_if_exists": "ON",
    },
    "mysql": {
        "max_execution_time": "50",
        "cte_max_recursion_depth": "1",
        "sql_generate_invisible_primary_key": "ON",
        "show_gipk_in_create_table_and_information_schema": "OFF",
        "sql_require_primary_key": "ON",
        "show_create_table_verbosity": "ON",
        "information_schema_stats_expiry": "0",
    },
}


def set_hostile_globals(server: MariaDb) -> dict[str, object]:
    """Set all of them that the server has; return the former values, for `restore_globals`."""
    wanted = {**_BOTH, **_OWN[server.name]}
    listed = dict(rows(server, "SHOW GLOBAL VARIABLES"))
    former = {name: listed[name] for name in wanted if name in listed}
    execute(server, *(f"SET GLOBAL {name} = {value}" for name, value in wanted.items() if name in listed))
    return former


def restore_globals(server: MariaDb, former: Mapping[str, object]) -> None:
    """Set the former values again."""
    with server.connect() as link, link.cursor() as cursor:
        cursor.execute("SET SESSION sql_select_limit = DEFAULT, character_set_client = utf8mb4")
        for name, value in former.items():
            text = str(value)
            cursor.execute(f"SET GLOBAL {name} = %s", (int(text) if text.isdigit() else text,))

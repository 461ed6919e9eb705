"""The record that Binlake keeps beside a checkpoint row, for tests that write the row themselves."""

from __future__ import annotations

from support.mariadb import MariaDb, execute, rows


def accept_rows(server: MariaDb, schema: str = "tidb_binlog") -> None:
    """Make the records agree with the rows, as after `binlake checkpoint adopt`, or in an older copy of the target."""
    found = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = 'binlake_position'"
    if rows(server, found, (schema,)):
        execute(
            server,
            f"REPLACE INTO {schema}.binlake_position (clusterID, commitTS)"
            f" SELECT clusterID, CAST(JSON_EXTRACT(checkPoint, '$.commitTS') AS UNSIGNED) FROM {schema}.checkpoint",
        )

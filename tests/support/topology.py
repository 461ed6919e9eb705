"""A primary of either family, and a server that replicates from it by GTIDs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from support.mariadb import MariaDb, MySql, execute, mariadb_in_memory, mysql_in_memory, rows
from support.sourcelog import end_of

_WAIT_S = 120


@dataclass(frozen=True)
class Topology:
    """A primary, and a server that replicates from it."""

    primary: MariaDb
    replica: MariaDb

    def replicate(self) -> None:
        """Start replication; does nothing if it is running."""
        execute(self.replica, "START REPLICA")

    def stop_replicating(self) -> None:
        """Stop the replica at its current position."""
        execute(self.replica, "STOP REPLICA")

    def wait_for_replica(self) -> None:
        """Wait until the replica has everything that the primary has now."""
        wait = "WAIT_FOR_EXECUTED_GTID_SET" if isinstance(self.primary, MySql) else "MASTER_GTID_WAIT"
        [(late,)] = rows(self.replica, f"SELECT {wait}(%s, {_WAIT_S})", (end_of(self.primary).gtids,))
        assert late == 0, "the replica does not catch up"


@contextlib.contextmanager
def start_replica(primary: MariaDb) -> Iterator[Topology]:
    """Start a new server that replicates what `primary` does from now on, and nothing from before."""
    is_mysql = isinstance(primary, MySql)
    private = (
        mysql_in_memory(MySql.list_source_options(22))
        if is_mysql
        else mariadb_in_memory(MariaDb.list_source_options(21))
    )
    with private as replica:
        done = end_of(primary).gtids
        to = f"HOST = '{primary.host}', %s_PORT = {primary.port}, %s_USER = 'root', %s_PASSWORD = ''"
        if is_mysql:
            execute(
                replica, "RESET BINARY LOGS AND GTIDS", f"SET GLOBAL gtid_purged = '{done}'",
                f"CHANGE REPLICATION SOURCE TO SOURCE_{to.replace('%s', 'SOURCE')}, SOURCE_AUTO_POSITION = 1,"
                " SOURCE_SSL = 0, GET_SOURCE_PUBLIC_KEY = 1",
            )  # fmt: skip
        else:
            execute(
                replica, f"SET GLOBAL gtid_slave_pos = '{done}'",
                f"CHANGE MASTER TO MASTER_{to.replace('%s', 'MASTER')}, MASTER_USE_GTID = slave_pos",
            )  # fmt: skip
        execute(replica, "START REPLICA")
        yield Topology(primary, replica)
        execute(replica, "STOP REPLICA")

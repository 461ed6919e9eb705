"""The names of the source's present tables, from its history of DDL; PD is not asked."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from binlake.cluster.placement import open_placement
from binlake.cluster.source.sqlhistory import SqlHistory
from binlake.cluster.source.tidb import TidbSource
from binlake.rows.schema import SchemaState
from binlake.rows.schema.state import JobSpool

if TYPE_CHECKING:
    from binlake.config.servers import SourceSection


def read_table_names(source: SourceSection) -> list[tuple[str, str]]:
    """(db, table) of all tables, views and sequences of `source`. Raises SourceUnavailable, SchemaError, Transient.

    `source` has its password. A feeder's status address gives the tables of its servers under its own names.
    """
    with open_placement(source) as placement:
        tls = placement.tls
        history = SqlHistory(source.sql, source.timeout_s, source.sql_security) if source.sql is not None else None
        opened = TidbSource(placement.pd, source.status_url, source.timeout_s, tls=tls, history=history)
        with closing(opened) as tidb, JobSpool() as spool:
            spool.fill(tidb.fetch_ddl_jobs(0))
            state = SchemaState().fold(spool.iterate_jobs())
    return [(table.db, table.name) for table in state.list_tables()]

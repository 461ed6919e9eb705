"""Sessions at a TiDB server that see definitions and rows of its tables as of one commit_ts (`tidb_snapshot`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pymysql import err
from pymysql.constants import ER

from binlake.base.sections import SqlSecurity
from binlake.base.sqllink import SqlLink, build_tls_arguments
from binlake.config.model import Replication
from binlake.config.servers import SourceSql
from binlake.errors import BinlakeError, ConfigError, LostRange, SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.tablerows.link import Link, ask

_READ_TIMEOUT_S = 600  # for one answer: finding the upper bound of a range may take long
_SETTINGS = (
    "SET NAMES utf8mb4",
    "SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 3600, wait_timeout = 86400",
)
_GC_TOO_EARLY = (8055, 9006)
"""TiDB's errors when the snapshot is older than the GC safe point: when a session sets it, and when one reads on."""
_NO_ACCESS = frozenset(
    {
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
    }
)


@dataclass(frozen=True)
class SnapshotSource:
    """The server of `[source.sql]`, as of commit_ts `ts`."""

    sql: SourceSql
    ts: int
    security: SqlSecurity

    @classmethod
    def of(cls, replication: Replication, ts: int) -> SnapshotSource:
        """The snapshot source of `replication`. Raises ConfigError if it has no `[source.sql]`."""
        source = replication.source
        if source.sql is None:
            raise ConfigError(
                "a full load of a TiDB source reads its tables by SQL, but this replication names no SQL server",
                where={"replication": replication.name},
                hint="add a section [source.sql]: host, port and a user with SELECT on the tables",
            )
        return cls(source.sql, ts, source.sql_security)

    @contextmanager
    def open_session(self) -> Iterator[Link]:
        """A session that sees the snapshot; server errors inside the context become Binlake's errors.

        Raises SourceUnavailable, SourceRefused, LostRange.
        """
        link: Link | None = None
        try:
            link = self._connect()
            for statement in (*_SETTINGS, f"SET SESSION tidb_snapshot = '{self.ts}'"):
                ask(link, statement)
            yield link
        except err.MySQLError as error:
            raise self._translate_error(error) from error
        finally:
            if link is not None and link.open:
                # Not `close`, which would first read the remaining rows of an unfinished query.
                link._force_close()  # type: ignore[attr-defined]

    def _connect(self) -> Link:
        sql = self.sql
        tls = build_tls_arguments(self.security, plain_at=sql.host)
        return SqlLink(
            host=sql.host, port=sql.port, user=sql.user, password=sql.password, charset="utf8mb4", autocommit=True,
            connect_timeout=10, read_timeout=_READ_TIMEOUT_S, **tls,
        )  # fmt: skip

    def _translate_error(self, error: err.MySQLError) -> BinlakeError:
        code, text = (error.args[0] if error.args else 0), str(error.args[-1:])
        where = {"server": f"{self.sql.host}:{self.sql.port}", "commit_ts": self.ts}
        if code == ER.UNKNOWN_SYSTEM_VARIABLE:
            return SourceRefused(
                "the server of [source.sql] has no tidb_snapshot: it is not a TiDB",
                where=where,
                hint="name a TiDB server of the source cluster; a MySQL or MariaDB source is loaded by its feeder",
            )
        if code in _GC_TOO_EARLY:
            return LostRange(
                f"the snapshot can no longer be read: {text}",
                where=where,
                hint="raise tidb_gc_life_time, give the replication a new lake folder, and load again",
            )
        if code in _NO_ACCESS:
            return SourceRefused(
                f"the source refuses the load: {code} {text}",
                where=where,
                hint="the user of [source.sql] needs SELECT and SHOW VIEW on all replicated tables",
            )
        return SourceUnavailable(f"the source interrupted the load: {code} {text}", where=where)

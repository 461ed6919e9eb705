"""TiDB's DDL history by SQL: the table `mysql.tidb_ddl_history` (since 6.2), for sites that close the status port.

Running jobs are in `mysql.tidb_ddl_job`: one transaction moves a job from there to the history. `job_meta` is the JSON
that `/ddl/history` returns (tidb-binlog 10.3). The history is read in pages of rows, never as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from binlake.errors import ConfigError, SourceUnavailable, WireError

if TYPE_CHECKING:
    import pymysql

    from binlake.base.sections import SqlSecurity
    from binlake.config.servers import SourceSql

PAGE = 64

_REFUSED = frozenset({1044, 1045, 1049, 1142, 1143, 1146})
"""MySQL's error numbers: no privilege, wrong password, no such database or table."""

_PAGE_SQL = "SELECT job_id, job_meta FROM mysql.tidb_ddl_history"


class SqlHistory:
    """One connection, opened by the first query. Raises SourceUnavailable, WireError.

    Raises ConfigError for faults that a retry does not fix: no such table, user or privilege.
    """

    def __init__(self, sql: SourceSql, timeout_s: float = 10.0, security: SqlSecurity | None = None) -> None:
        self._sql = sql
        self._security = security
        self._timeout_s = timeout_s
        self._link: pymysql.Connection[Any] | None = None

    def fetch_page(self, below: int) -> list[dict[str, Any]]:
        """The newest jobs with id < `below` (0 = no limit), newest first; empty if there are none."""
        where = " WHERE job_id < %s" if below else ""
        return self._fetch_jobs(f"{_PAGE_SQL}{where} ORDER BY job_id DESC LIMIT {PAGE}", (below,) if below else ())

    def fetch_by_id(self, ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """The finished jobs among `ids`."""
        jobs: dict[int, dict[str, Any]] = {}
        sorted_ids = sorted(ids)
        for start in range(0, len(sorted_ids), PAGE):
            part = sorted_ids[start : start + PAGE]
            marks = ", ".join(["%s"] * len(part))
            jobs.update((job["id"], job) for job in self._fetch_jobs(f"{_PAGE_SQL} WHERE job_id IN ({marks})", part))
        return jobs

    def fetch_running(self) -> list[dict[str, Any]]:
        """The unfinished jobs, including waiting ones."""
        return self._fetch_jobs("SELECT job_id, job_meta FROM mysql.tidb_ddl_job", ())

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def _fetch_jobs(self, sql: str, arguments: Sequence[int]) -> list[dict[str, Any]]:
        # The MySQL driver, which loads ciphers, is imported only here: every pump and window imports this module.
        from pymysql import err

        try:
            with self._connect().cursor() as cursor:
                cursor.execute(sql, tuple(arguments) or None)
                return [_parse_job(int(job_id), meta) for job_id, meta in cursor.fetchall()]
        except (err.MySQLError, OSError) as error:
            self.close()
            refused = bool(error.args) and error.args[0] in _REFUSED
            raise (ConfigError if refused else SourceUnavailable)(
                f"the DDL history cannot be read by SQL: {error}",
                where={"server": f"{self._sql.host}:{self._sql.port}", "user": self._sql.user},
                hint="set [source.sql] to a TiDB 6.2 or newer, with SELECT on mysql.tidb_ddl_history"
                " and mysql.tidb_ddl_job",
            ) from error

    def _connect(self) -> pymysql.Connection[Any]:
        if self._link is None:
            from binlake.base.sections import SqlSecurity
            from binlake.base.sqllink import SqlLink, build_tls_arguments

            self._link = SqlLink(
                host=self._sql.host, port=self._sql.port, user=self._sql.user, password=self._sql.password,
                charset="utf8mb4", autocommit=True, connect_timeout=max(1, round(self._timeout_s)),
                read_timeout=self._timeout_s, **build_tls_arguments(self._security or SqlSecurity()),
            )  # fmt: skip
        return self._link


def _parse_job(job_id: int, meta: bytes | str) -> dict[str, Any]:
    try:
        return {**json.loads(meta), "id": job_id}
    except (ValueError, TypeError) as error:
        raise WireError(
            f"job_meta of a DDL job is not a JSON object: {error!r}",
            where={"tables": "mysql.tidb_ddl_history, mysql.tidb_ddl_job", "job_id": job_id},
            hint="TiDB writes JSON there since 6.2; read the history from source.status-url instead",
        ) from error

"""DDL jobs beside those that TiDB's status port lists: the history by SQL, and steps of jobs that have not ended.

By SQL the history is the table `mysql.tidb_ddl_history` (since 6.2), for sites that close the status port. Running jobs
are in `mysql.tidb_ddl_job`: one transaction moves a job from there to the history. `job_meta` is the JSON that
`/ddl/history` returns (tidb-binlog 10.3). The history is read in pages of rows, never as a whole.

A DDL job runs in steps, and is in the history only after it has ended. Each step takes one schema version. The key
`SchemaVersionKey` has the newest version. `Diff:VERSION` is written in the step's transaction, so its write record has
the step's commit_ts. Both are read by `/mvcc/hex/KEY`; `/db-table/ID` returns a table's definition (tidb-binlog 10.3).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from binlake.cluster.source.protocol import find_mvcc_info
from binlake.errors import ConfigError, SourceUnavailable, WireError

if TYPE_CHECKING:
    import pymysql

    from binlake.common.sections import SqlSecurity
    from binlake.config.servers import SourceSql

PAGE = 64

_REFUSED = frozenset({1044, 1045, 1049, 1142, 1143, 1146})
"""MySQL's error numbers: no privilege, wrong password, no such database or table."""

_PAGE_SQL = "SELECT job_id, job_meta FROM mysql.tidb_ddl_history"
_GROUP = 8
_STRING = ord("s").to_bytes(8, "big")
_PUT = 0


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
            from binlake.common.sections import SqlSecurity
            from binlake.common.sqllink import SqlLink, build_tls_arguments

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


@dataclass(frozen=True)
class DdlStep:
    """One step of a DDL job: schema version, commit_ts, kind (TiDB's number; that of the clause) and table id.

    If the step's transaction may still be running, `commit_ts` is its start_ts, and `action` is 0: any kind.
    """

    version: int
    commit_ts: int
    action: int
    table_id: int


@dataclass(frozen=True)
class ShownTable:
    """A table as a server sees it: `version`: its loaded schema version; `info`: TableInfo (None: no such table)."""

    version: int
    info: Mapping[str, Any] | None


def encode_meta_key(name: str) -> bytes:
    """The key of a string in TiDB's meta data: the prefix m, the name in groups of eight, its kind."""
    raw = name.encode()
    groups = [raw[at : at + _GROUP] for at in range(0, len(raw) + 1, _GROUP)]
    return b"m" + b"".join(part.ljust(_GROUP, b"\0") + bytes([255 - _GROUP + len(part)]) for part in groups) + _STRING


VERSION_KEY = encode_meta_key("SchemaVersionKey")


def encode_step_key(version: int) -> bytes:
    """The key with the changes of a schema version."""
    return encode_meta_key(f"Diff:{version}")


def parse_newest_version(body: str) -> int | None:
    """The newest schema version in the answer for `VERSION_KEY`; None if the source has none (it is not a TiDB).

    If the next version is being written, that one is returned. Raises SourceUnavailable, WireError.
    """
    info = _parse_record(body)
    value = _find_value(info)
    if value is None and not info.get("lock"):
        return None
    return int(value or b"0") + bool(info.get("lock"))


def parse_step(version: int, body: str) -> DdlStep | None:
    """The step of `version` in the answer for its key; None if it does not exist, as its transaction never committed.

    Raises SourceUnavailable, WireError.
    """
    info = _parse_record(body)
    if lock := info.get("lock"):
        return DdlStep(version, int(lock["start_ts"]), 0, 0)
    value = _find_value(info)
    if value is None:
        return None
    diff = json.loads(value)
    return DdlStep(version, _find_newest_write(info)["commit_ts"], int(diff["type"]), int(diff.get("table_id") or 0))


def parse_shown_table(body: str | None) -> ShownTable:
    """The definition in an answer to `/db-table/ID`; None if the server knows no such table. Raises WireError."""
    if body is None:
        return ShownTable(0, None)
    try:
        answer = json.loads(body)
        return ShownTable(int(answer["schema_version"]), answer["table_info"])
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"the answer to /db-table is not a definition: {error!r}") from error


def _parse_record(body: str) -> Mapping[str, Any]:
    try:
        info = find_mvcc_info(json.loads(body))
    except (ValueError, TypeError, AttributeError) as error:
        raise WireError(f"the answer to /mvcc/hex is not a record of a key: {error!r}") from error
    if info is None:
        raise SourceUnavailable(
            "the source cannot read its own schema version",
            where={"answer": body[:200]},
            hint="try again, or set [source.sql] to read jobs by SQL",
        )
    return info


def _find_newest_write(info: Mapping[str, Any]) -> Mapping[str, Any]:
    puts = [write for write in info.get("writes") or () if int(write.get("type") or 0) == _PUT]
    return max(puts, key=lambda write: int(write["commit_ts"]), default={})


def _find_value(info: Mapping[str, Any]) -> bytes | None:
    write = _find_newest_write(info)
    if not write:
        return None
    long = (one.get("value") for one in info.get("values") or () if one["start_ts"] == write["start_ts"])
    text = write.get("short_value") or next(long, None)
    if not text:
        raise WireError(
            "the source reports that a key was written, but not its value", where={"start_ts": write["start_ts"]}
        )
    return base64.b64decode(text)

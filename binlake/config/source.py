"""The settings of the source: PD, the status port, a SQL server, and what to do where a log does not say enough."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from binlake.base.sections import HostText, NameList, Section, SecuritySection, SqlSecurity
from binlake.rows.schema.job import read_zone


def _check_zone(text: str) -> str:
    if text and read_zone(text) is None:
        raise ValueError(f"{text!r} is not a time zone; use `+08:00`, `UTC`, or a name that this machine knows")
    return text


class SourceSql(Section):
    """A TiDB server whose `mysql.tidb_ddl_history` is read instead of the status port's DDL history (TiDB >= 6.2)."""

    host: HostText = Field(description="host name or address")
    port: int = Field(4000, ge=1, le=65535, description="TCP port")
    user: str = Field(
        "root",
        description="user with SELECT on mysql.tidb_ddl_history and mysql.tidb_ddl_job;"
        " for a full load, on all tables that are replicated",
    )
    password: str = Field("", repr=False, description="password: `env:NAME` or `airflow:CONN_ID`")
    security: SqlSecurity | None = Field(None, description="absent = the files of [source.security]")


class SourceSnapshot(Section):
    """How `binlake bootstrap` reads the tables of a TiDB source through `[source.sql]`."""

    threads: int = Field(4, ge=1, le=64, description="connections that read rows in parallel (dumpling: --threads)")
    chunk_rows: int = Field(
        20_000, ge=1, le=1_000_000, description="rows per chunk; an interrupted chunk is read again"
    )


class SourceSection(Section):
    """Where binlogs and schemas come from."""

    pd_urls: NameList = Field(("http://127.0.0.1:2379",), description="addresses of PD (TSO and registry), comma list")
    status_url: str = Field("http://127.0.0.1:10080", description="TiDB's status port: DDL history, transaction status")
    cluster_id: str = Field("", pattern=r"^[0-9]*$", description="refuse any other cluster; empty = accept PD's")
    new_collation: bool = Field(
        True,
        description="false for a cluster created with new_collations_enabled_on_first_bootstrap = false. It compares"
        " all text bytewise, whatever collations its definitions name, so the target's collations are bytewise too",
    )
    time_zone: Annotated[str, AfterValidator(_check_zone)] = Field(
        "",
        description="time zone of the sessions that send DDL, such as `+08:00` or `Europe/Berlin`, for DDL jobs that"
        " do not contain it; TiDB converts TIMESTAMP values with it. Empty = DDL that depends on it is refused",
    )
    invalid_text: Literal["refuse", "latin1"] = Field(
        "refuse",
        description="handling of text whose bytes are not UTF-8, which TiDB accepts in latin1 columns: `refuse` ="
        " merge stops; `latin1` = merge reads it as MySQL's latin1 (windows-1252) and counts it, with one alert per"
        " window and table. In columns of a unique key it is always refused",
    )
    second_writes: Literal["refuse", "once"] = Field(
        "refuse",
        description="TiDB logs changes twice while REORGANIZE PARTITION runs. In tables without a key the duplicates"
        " cannot be identified: `refuse` = merge stops; `once` = each pair counts as one change, with one alert per"
        " window and table. Compare the table afterwards (`binlake verify --fix`): the source may have such rows"
        " twice",
    )
    partition_rows: Literal["refuse", "removed"] = Field(
        "refuse",
        description="rows that were committed while their partition was dropped, truncated or exchanged, if nothing"
        " shows whether they were written before or after it: `refuse` = merge stops; `removed` = they went with the"
        " partition, with one alert per window and table. Compare the table with the source afterwards (`binlake verify"
        " --against source --fix`)",
    )
    session_variables: Literal["unknown", "default"] = Field(
        "unknown",
        description="variables of MySQL's or MariaDB's sessions that no log has and on which an ALTER's values in old"
        " rows may depend, such as div_precision_increment: `unknown` = finalize stops at such an ALTER; `default` = no"
        " session and no setting of the source changes them from a new server's, which the target then uses",
    )
    timeout_s: float = Field(10.0, gt=0, description="timeout of a call to PD, a pump or the status port, in seconds")
    security: SecuritySection = Field(SecuritySection())
    sql: SourceSql | None = Field(None, description="absent = the DDL history is read from the status port")
    snapshot: SourceSnapshot = Field(SourceSnapshot())

    @property
    def expected_cluster(self) -> int:
        """`cluster-id` as a number; 0 = not configured."""
        return int(self.cluster_id or 0)

    @property
    def sql_security(self) -> SqlSecurity:
        """TLS to the server of `[source.sql]`."""
        if self.sql is not None and self.sql.security is not None:
            return self.sql.security
        ca, cert, key = self.security.list_files()
        return SqlSecurity(ssl_ca=ca, ssl_cert=cert, ssl_key=key)

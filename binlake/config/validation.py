"""Continuous validation: rows of applied windows are compared, window by window (DM's `validators`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from binlake.base.sections import HostText, Section, SqlSecurity


class ValidatedSource(Section):
    """The MySQL or MariaDB server that a feeder reads, to compare its current rows. With GTIDs a replica of it is
    enough; without GTIDs it must be that server."""

    name: str = Field(description="the source's name in feeder.toml")
    host: HostText = Field(description="host name or address")
    port: int = Field(3306, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user with SELECT on the tables; without GTIDs, also REPLICATION CLIENT")
    password: str = Field("", repr=False, description="password: `env:NAME` or `airflow:CONN_ID`")
    security: SqlSecurity = Field(SqlSecurity())
    rename_schema: str = Field("", description="`rename-schema` of this source in feeder.toml")

    @model_validator(mode="after")
    def _require_schema_placeholder(self) -> ValidatedSource:
        if self.rename_schema and "{schema}" not in self.rename_schema:
            raise ValueError("`rename-schema` has no `{schema}` in it")
        return self

    def find_schema(self, database: str) -> str | None:
        """The name at the source of `database`, a name that the feeder gives; None if it is not from this source."""
        template = (self.rename_schema or "{schema}").replace("{source}", self.name)
        prefix, _, suffix = template.partition("{schema}")
        if len(database) <= len(prefix) + len(suffix) or not database.startswith(prefix):
            return None
        return database[len(prefix) : len(database) - len(suffix)] if database.endswith(suffix) else None


class ValidationSection(Section):
    """Compares rows of each applied window with the lake, and with the source if it can be queried."""

    mode: Literal["off", "sample", "full"] = Field(
        "off", description="`sample`: compare some of the rows that a window changed; `full`: all of them"
    )
    sample_rows: int = Field(1000, ge=1, description="rows that `sample` compares per run, shared among the tables")
    max_behind_s: int = Field(
        3600,
        ge=1,
        description="skip rows that changed more than this many seconds of commit time before the checkpoint, so that"
        " validation need not catch up after a standstill",
    )
    max_pending_rows: int = Field(
        10_000,
        ge=1,
        description="limit for pending rows, which differ from the source's current ones and wait for proof; more are"
        " dropped",
    )
    max_errors: int = Field(1000, ge=1, description="errors stored in the ledger; further ones are only counted")
    source: tuple[ValidatedSource, ...] = Field((), description="servers behind a feeder that may be queried")

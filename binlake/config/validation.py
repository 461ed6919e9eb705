"""Continuous validation: rows of applied windows are compared, window by window (DM's `validators`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from binlake.base.sections.values import Section


class ValidatedSource(Section):
    """A MySQL or MariaDB server that a feeder reads, for comparing its present rows; a replica of it will do where it
    has GTIDs. Without GTIDs: the very server of the feeder."""

    name: str = Field(description="the source's name in feeder.toml")
    host: str = Field(description="host name or address")
    port: int = Field(3306, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user with SELECT on the tables; without GTIDs REPLICATION CLIENT, too")
    password: str = Field("", repr=False, description="password; `env:NAME` reads it from the environment")
    rename_schema: str = Field("", description="`rename-schema` of this source in feeder.toml")

    @model_validator(mode="after")
    def _require_schema_placeholder(self) -> ValidatedSource:
        if self.rename_schema and "{schema}" not in self.rename_schema:
            raise ValueError("`rename-schema` has no `{schema}` in it")
        return self

    def schema_of(self, database: str) -> str | None:
        """The source's own name of what is `database` behind the feeder; None: it is not this source's."""
        template = (self.rename_schema or "{schema}").replace("{source}", self.name)
        prefix, _, suffix = template.partition("{schema}")
        if len(database) <= len(prefix) + len(suffix) or not database.startswith(prefix):
            return None
        return database[len(prefix) : len(database) - len(suffix)] if database.endswith(suffix) else None


class Validation(Section):
    """Compares rows of each applied window with the lake, and with the source where it can be asked."""

    mode: Literal["off", "sample", "full"] = Field(
        "off", description="`sample`: some of the rows that the windows changed; `full`: all of them"
    )
    sample_rows: int = Field(1000, ge=1, description="rows of a run that `sample` compares; each table has its share")
    max_behind_s: int = Field(
        3600,
        ge=1,
        description="rows that changed longer than this before the checkpoint, in seconds of commit time, are passed"
        " over: after a standstill validation does not read all that was missed",
    )
    max_pending_rows: int = Field(
        10_000, ge=1, description="rows that differ from the source's present ones and wait for proof; more are dropped"
    )
    max_errors: int = Field(1000, ge=1, description="errors in the ledger; more are counted only")
    source: tuple[ValidatedSource, ...] = Field((), description="servers behind a feeder that may be asked")

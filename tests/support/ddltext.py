"""A DDL's text with the names and definitions of the target, where a test has no row of the lake's table `ddl`."""

from __future__ import annotations

from dataclasses import dataclass

from binlake.rows.schema.delta import Definitions


@dataclass(frozen=True)
class DdlText:
    """As `binlake.dialect.RoutedDdl`."""

    commit_ts: int
    db: str
    table: str
    sql: str
    before: Definitions
    after: Definitions

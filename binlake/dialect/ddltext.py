"""A DDL of which nothing but its text is known, or given, in the form that the mapping takes."""

from __future__ import annotations

from dataclasses import dataclass

from binlake.rows.schema.delta import Definitions

_NOTHING = Definitions((), ())


@dataclass(frozen=True)
class DdlText:
    """A `RoutedDdl`: `sql` has the target's names; `before` and `after` only where somebody knows them."""

    commit_ts: int
    db: str
    table: str
    sql: str
    before: Definitions = _NOTHING
    after: Definitions = _NOTHING

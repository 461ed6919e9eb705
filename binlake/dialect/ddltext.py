"""A DDL that is given only as text, in the form that the mapping accepts."""

from __future__ import annotations

from dataclasses import dataclass

from binlake.rows.schema.delta import DdlSide

_NOTHING = DdlSide((), ())


@dataclass(frozen=True)
class DdlText:
    """A `RoutedDdl`: `sql` has the target's names; `before` and `after` are empty unless the definitions are known."""

    commit_ts: int
    db: str
    table: str
    sql: str
    before: DdlSide = _NOTHING
    after: DdlSide = _NOTHING

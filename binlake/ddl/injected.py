"""Injected statements, which only the target runs: each opens a segment before its commit_ts (U-15).

The source does not have them, so no definition changes and no row is decoded differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from binlake.ddl.deciding import NOTHING
from binlake.ddl.definitions import LandedDdl
from binlake.dialect.replacement import Injection

_ALERT = "the target runs a statement of ddl-injection before the changes at this commit_ts"


def add_injections(
    planned: Sequence[LandedDdl], injections: Iterable[Injection], lo: int, hi: int, version: int
) -> list[LandedDdl]:
    """`planned` plus the `injections` in the window (lo, hi]. `version`: the schema version at lo."""
    due = [injection for injection in injections if lo < injection.commit_ts <= hi]
    rows: list[LandedDdl] = []
    for ddl in planned:
        # A DDL that opens a segment may cut the window before its commit_ts. One that does not is no bound.
        while due and due[0].commit_ts <= (ddl.commit_ts if ddl.opens_segment else ddl.since):
            rows.append(_build_row(rows, planned, due.pop(0), version))
        made = sum(each.decision == "injected" for each in rows)
        rows.append(replace(ddl, segment=ddl.segment + made))
    for injection in due:
        rows.append(_build_row(rows, planned, injection, version))
    return rows


def _build_row(
    rows: Sequence[LandedDdl], planned: Sequence[LandedDdl], injection: Injection, version: int
) -> LandedDdl:
    """The row of `injection` after all `rows`, and before rows that run ahead of a later DDL."""
    later = [ddl.since for ddl in planned if ddl.opens_segment and ddl.commit_ts >= injection.commit_ts]
    return LandedDdl(
        commit_ts=injection.commit_ts,
        since=min([injection.commit_ts, *later]),
        start_ts=0,
        schema_version=max([version, *(ddl.schema_version for ddl in rows)]),
        job_id=0,
        action=0,
        db=injection.db,
        table="",
        query="",
        sql=injection.sql,
        decision="injected",
        reason="",
        before=NOTHING,
        after=NOTHING,
        segment=rows[-1].segment + 1 if rows else 1,
        alert=_ALERT,
    )

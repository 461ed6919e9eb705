"""Schemas inside a window: each DDL opens a segment, and a row is decoded by the segment of its commit_ts (R-19)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from binlake.errors import SchemaError
from binlake.schema.actions import DELETE_ONLY
from binlake.schema.job import DdlJob
from binlake.schema.state import SchemaState

_END = (1 << 63) - 1
_SETVAL = "select setval("


@dataclass(frozen=True)
class WindowDdl:
    """A DDL binlog: `commit_ts`, `query`, `job_id`, `schema_state` as in the binlog; `job` is None where not needed.

    Only a `ddl` needs its job: the extra delete-only binlog of DROP COLUMN shares the id of a job that ends later,
    and a pseudo DDL of a sequence has an id that never exists (tidb-binlog 1.11, 1.14).
    """

    commit_ts: int
    query: str
    job_id: int
    schema_state: int
    job: DdlJob | None = None

    @property
    def kind(self) -> Literal["ddl", "delete-only", "setval"]:
        """`ddl` opens a segment; the other two never do."""
        return ddl_kind(self.query, self.schema_state)


def ddl_kind(query: str, schema_state: int) -> Literal["ddl", "delete-only", "setval"]:
    """What a DDL binlog is: a real `ddl`, the extra `delete-only` one of DROP COLUMN, or a `setval` pseudo DDL."""
    if query.lstrip().lower().replace("setval (", "setval(", 1).startswith(_SETVAL):
        return "setval"
    return "delete-only" if schema_state == DELETE_ONLY else "ddl"


class WindowSchemas:
    """Schema states of one window: segment 0 is `base`, real DDL k (commit order, from 1) opens segment k.

    A DDL that changes nothing (rolled back, not supported) opens a segment with the same definitions.
    `first_seen` (schema_version of DML -> least commit_ts with it) moves a segment's start before rows that have seen
    its DDL already: the columns of a multi-schema change turn public one step before its binlog is written, and such
    rows would lose what they hold in them. Other DDL is never seen early, so without such rows nothing moves.
    Raises SchemaError when a real DDL has no job.
    """

    def __init__(
        self, base: SchemaState, ddls: Sequence[WindowDdl], first_seen: Mapping[int, int] | None = None
    ) -> None:
        real = sorted((d for d in ddls if d.kind == "ddl"), key=lambda d: d.commit_ts)
        self.ddls: tuple[WindowDdl, ...] = tuple(real)
        self._starts = [segment_start(d, first_seen or {}) for d in real]
        states = [base]
        for ddl in real:
            states.append(states[-1].apply(_job_of(ddl), ddl.commit_ts))
        self._states = tuple(states)

    @property
    def segments(self) -> int:
        """Number of segments: 1 + real DDLs."""
        return len(self._states)

    def spans(self) -> Iterator[tuple[int, int, SchemaState]]:
        """(since, until, schema): rows with since <= commit_ts < until are decoded in it, in order, all of them."""
        edges = [0, *self._starts, _END]
        for number, state in enumerate(self._states):
            yield edges[number], edges[number + 1], state

    def segment_of(self, commit_ts: int) -> int:
        """The segment that holds `commit_ts`; a DDL's own commit_ts is in the segment that it opens, or a later one."""
        return bisect_right(self._starts, commit_ts)

    def at(self, segment: int) -> SchemaState:
        """The schema of a segment (0 to segments - 1); of the last one: the schema after the window."""
        return self._states[segment]

    def place(self, commit_ts: int) -> SchemaState:
        """The schema in which a row committed at `commit_ts` is decoded."""
        return self._states[bisect_right(self._starts, commit_ts)]


def unknown_table(table_id: int, commit_ts: int) -> SchemaError:
    """The error for a row change whose table no job told of."""
    return SchemaError(
        "a row change names a table id that the schema history does not know",
        hint="reload the DDL history from the source, or start the task after this commit_ts, "
        "or name the commit_ts in ignore-txn-commit-ts to lose the transaction knowingly",
        where={"table_id": table_id, "commit_ts": commit_ts},
    )


def segment_start(ddl: WindowDdl, first_seen: Mapping[int, int]) -> int:
    """The least commit_ts whose rows may have seen `ddl`; `first_seen` as in WindowSchemas."""
    job = ddl.job
    if job is None or not job.took_effect:
        return ddl.commit_ts
    return min([ddl.commit_ts, *(ts for version, ts in first_seen.items() if version >= job.schema_version)])


def _job_of(ddl: WindowDdl) -> DdlJob:
    if ddl.job is None:
        raise SchemaError(
            "the job of a DDL of the window is missing",
            hint="land lowers hi to just before a DDL whose job is not in the history yet",
            where={"job_id": ddl.job_id, "commit_ts": ddl.commit_ts},
        )
    return ddl.job

"""Schemas in a window: each DDL opens a segment, and a row is decoded with the schema of its commit_ts's segment
(R-19).

The position of a DDL is defined in `binlake.rows.schema.ahead`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from binlake.errors import SchemaError
from binlake.rows.schema.actions import DELETE_ONLY
from binlake.rows.schema.ahead import compute_effective_ts
from binlake.rows.schema.job import DdlJob
from binlake.rows.schema.state import SchemaState

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_END = (1 << 63) - 1
_SETVAL = "select setval("


@dataclass(frozen=True)
class WindowDdl:
    """A DDL of a window: its binlog as pulled and landed, and its `job` if the source's history has it.

    `schema_state` is the binlog's: 1 marks the delete-only step of DROP COLUMN. Only a `ddl` needs its job: the
    delete-only binlog has the id of a job that ends later, and the pseudo DDL of a sequence has an id that never
    exists (tidb-binlog 1.11, 1.14). `logged` is False for a job without a binlog; land chose its `commit_ts`.
    """

    commit_ts: int
    start_ts: int
    job_id: int
    schema_state: int
    query: str
    job: DdlJob | None = None
    logged: bool = True

    @classmethod
    def without_binlog(cls, job: DdlJob, commit_ts: int) -> WindowDdl:
        """The WindowDdl of a job that no binlog names; `commit_ts`: its commit_ts or an upper bound of it."""
        return cls(commit_ts, 0, job.id, 0, job.query, job, logged=False)

    @property
    def kind(self) -> Literal["ddl", "delete-only", "setval"]:
        """The kind: `ddl` opens a segment; the other two do not."""
        return classify_ddl(self.query, self.schema_state)

    @property
    def since(self) -> int:
        """The commit_ts from which on rows belong after this DDL (`binlake.rows.schema.ahead`)."""
        return (
            compute_effective_ts(self.job, self.commit_ts)
            if self.kind == "ddl" and self.job is not None
            else self.commit_ts
        )

    def compute_since_above(self, lo: int) -> int:
        """`since`, but at least `lo` + 1, for a window that begins above `lo`."""
        return max(self.since, lo + 1)


def classify_ddl(query: str, schema_state: int) -> Literal["ddl", "delete-only", "setval"]:
    """The kind of a DDL binlog: a real `ddl`, the extra `delete-only` one of DROP COLUMN, or a `setval` pseudo DDL."""
    if query.lstrip().lower().replace("setval (", "setval(", 1).startswith(_SETVAL):
        return "setval"
    return "delete-only" if schema_state == DELETE_ONLY else "ddl"


def sort_ddls(lo: int, ddls: Sequence[WindowDdl]) -> list[WindowDdl]:
    """The DDLs of a window above `lo` in the order in which rows see them: by `since`, then by commit_ts.

    This may move a DDL before others, but only before DDLs of other tables, because TiDB runs the jobs of one table one
    after the other.
    """
    return sorted(ddls, key=lambda ddl: (ddl.compute_since_above(lo), ddl.commit_ts))


class SchemaSpan(NamedTuple):
    """Rows with since <= commit_ts < until are decoded with `schema`."""

    since: int
    until: int
    schema: SchemaState


class WindowSchemas:
    """Schema states of one window: segment 0 has `base`; the k-th real DDL (from 1), as sorted, opens segment k.

    A DDL that changes nothing (rolled back, not supported) opens a segment with the same definitions. `lo`: the
    window's start. Raises SchemaError if a real DDL has no job.
    """

    def __init__(self, base: SchemaState, ddls: Sequence[WindowDdl], lo: int = 0) -> None:
        self.ddls = tuple(sort_ddls(lo, [ddl for ddl in ddls if ddl.kind == "ddl"]))
        self._starts = [ddl.compute_since_above(lo) for ddl in self.ddls]
        states = [base]
        for ddl in self.ddls:
            states.append(states[-1].follow(_require_job(ddl), ddl.commit_ts, base.version))
        self._states = tuple(states)

    @property
    def segments(self) -> int:
        """Number of segments: 1 + real DDLs."""
        return len(self._states)

    def iterate_spans(self) -> Iterator[SchemaSpan]:
        """The spans of all segments of the window, in order."""
        edges = [0, *self._starts, _END]
        for number, state in enumerate(self._states):
            yield SchemaSpan(edges[number], edges[number + 1], state)

    def find_segment(self, commit_ts: int) -> int:
        """The segment of `commit_ts`; a DDL's own commit_ts is in the segment that it opens, or in a later one."""
        return bisect_right(self._starts, commit_ts)

    def find_schema_of_segment(self, segment: int) -> SchemaState:
        """The schema of a segment (0 to segments - 1); the last segment's schema is the schema after the window."""
        return self._states[segment]

    def find_schema_at(self, commit_ts: int) -> SchemaState:
        """The schema with which a row committed at `commit_ts` is decoded."""
        return self._states[bisect_right(self._starts, commit_ts)]

    def find_schemas_at(self, commit_ts: NDArray[np.int64]) -> tuple[Sequence[SchemaState], NDArray[np.int64]]:
        """`find_schema_at` for many: the states of the window, and the index of each commit_ts's state."""
        # Loading a configuration imports this package, and most programs that do (pumps, DAG files) read no rows.
        import numpy as np

        return self._states, np.searchsorted(np.asarray(self._starts, np.int64), commit_ts, side="right")


def build_unknown_table_error(table_id: int, commit_ts: int) -> SchemaError:
    """The error for a row change of a table that no job named."""
    return SchemaError(
        "a row change names a table id that the schema history does not know",
        hint="reload the DDL history from the source, or start the task after this commit_ts, "
        "or list the commit_ts in ignore-txn-commit-ts to deliberately lose the transaction",
        where={"table_id": table_id, "commit_ts": commit_ts},
    )


def _require_job(ddl: WindowDdl) -> DdlJob:
    if ddl.job is None:
        raise SchemaError(
            "the job of a DDL of the window is missing",
            hint="land ends a window just before a DDL whose job is not in the history yet",
            where={"job_id": ddl.job_id, "commit_ts": ddl.commit_ts},
        )
    return ddl.job

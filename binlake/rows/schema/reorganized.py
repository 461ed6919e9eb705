"""Partitions of a table without a key that a DDL rearranges, while rows are written to both the old and the new ones.

Rule (TiDB v7.5; captures `zones`, table `Tagebuch`): the job takes five schema versions; N, the last, is the job's
version. From N-4 on, deletes and the former rows of updates go to the new partitions too. From N-3 to N-1 every change
does, at N-1 to the new partitions first. Each second write is in the binlog. A transaction has the schema version of
its BEGIN, but uses a table as it is when it first touches it: its step is that of its version or a later one, but not
one that began after its commit. Jobs of other tables in between can only make the step later.

The second write of an insert gets a separate row id. If the row is also copied, which happens if it was committed
before the copy began, the source has the row twice afterwards, as logged (pingcap/tidb#57510). If it was committed
while rows were copied, nothing shows whether it was copied. PARTITION BY and REMOVE PARTITIONING take the same steps,
but no capture shows them; for a job that was rolled back, nothing shows which steps it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from binlake.errors import SchemaError
from binlake.rows.schema.actions import Action
from binlake.rows.schema.emptied import Values, find_partition
from binlake.rows.schema.job import DdlJob

Json = Mapping[str, Any]

BEFORE, DELETE_ONLY, WRITE_ONLY, COPYING, SWITCHED, AFTER = range(-5, 1)
"""Steps of such a DDL: the schema version at the step minus the job's version."""
REARRANGING = frozenset({Action.REORGANIZE_PARTITION, Action.PARTITION_BY, Action.REMOVE_PARTITIONING})
"""The kinds of jobs that take these steps. TiDB logs ADD and COALESCE PARTITION of a hash as the first kind."""


@dataclass(frozen=True)
class Reorganized:
    """A DDL of schema `version` rearranged the partitions of a table without a key from `old` to `new` (of TableInfo).

    Rows with a commit_ts below `copied_ts` were committed before the copy began, rows below `until_ts` before the last
    step. `known`: the DDL took effect, and its steps are those of the rule.
    """

    version: int
    copied_ts: int
    until_ts: int
    known: bool
    old: Json | None
    new: Json | None

    def to_json(self) -> dict[str, Any]:
        """For a snapshot of the schema."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Json | None) -> Reorganized | None:
        """What `to_json` wrote; None for None."""
        return None if raw is None else cls(**raw)

    def find_steps(self, version: int, commit_ts: int, written: int) -> range:
        """The steps at which a transaction of schema `version` may have written; `written`: a partition it wrote
        into."""
        if not self.known:
            return range(BEFORE, AFTER + 1)
        last = COPYING if commit_ts < self.copied_ts else AFTER
        if last == AFTER and (commit_ts < self.until_ts or written in _list_ids(self.old) - _list_ids(self.new)):
            last = SWITCHED
        return range(max(version - self.version, BEFORE), last + 1)

    def find_place(self, step: int, row: Values, types: Mapping[str, int]) -> tuple[int, bool | None]:
        """(id of the partition of `row` at `step`, whether it is one of the rearranged ones).

        The id is 0 if it cannot be determined, and the second value None if that cannot be determined.
        """
        current, other = (self.new, self.old) if step >= SWITCHED else (self.old, self.new)
        ids = _list_ids(current)
        rearranged = ids - _list_ids(other)
        try:
            partition_id = find_partition(current, row, types) if current is not None and ids else 0
        except SchemaError:
            return 0, True if rearranged == ids else None
        return partition_id, not ids or partition_id in rearranged


def build_reorganized(job: DdlJob, commit_ts: int, old: Json | None) -> Reorganized:
    """The Reorganized of `job`, whose binlog is at `commit_ts` (0: not known), for a table whose TableInfo was
    `old`."""
    known = job.took_effect and job.type == Action.REORGANIZE_PARTITION
    new = (job.table_info or {}).get("partition") if job.took_effect else None
    # A job that is not placed at its binlog is at its FinishedTS, which is after its last step.
    until = commit_ts if commit_ts < job.finished_ts else job.ready_ts
    return Reorganized(job.schema_version, job.ready_ts, until, known, (old or {}).get("partition"), new)


def _list_ids(partition: Json | None) -> frozenset[int]:
    return frozenset(definition["id"] for definition in (partition or {}).get("definitions") or ())

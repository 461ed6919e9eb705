"""Partitions that a DDL rearranges while rows are written to the old and to the new ones, of tables without a key.

Rule (TiDB v7.5; captures `zones`, table `Tagebuch`): the job takes five schema versions, of which N is its own. From
N-4 on deletes, and of updates the row that was, go to the new partitions too; from N-3 to N-1 every change does, at N-1
with the new partitions first; and each second write is in the binlog. A transaction has the version of its BEGIN and
takes the table as it is when it first touches it: its step is that of its version or a later one, and none that began
after its commit. Jobs of other tables in between only make it later.

A second write of an insert gets a row id of its own. Where the row is copied as well, which it is if it was committed
before the copy began, the source has it twice afterwards (pingcap/tidb#57510): as logged. Of one that was committed
while rows were copied nothing shows. PARTITION BY and REMOVE PARTITIONING go the same steps, but no capture shows them;
of a job that was rolled back nothing shows which steps it went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from binlake.errors import SchemaError
from binlake.rows.schema.actions import Action
from binlake.rows.schema.emptied import Values, partition_of
from binlake.rows.schema.job import DdlJob

Json = Mapping[str, Any]

BEFORE, DELETE_ONLY, WRITE_ONLY, COPYING, SWITCHED, AFTER = range(-5, 1)
"""Steps of such a DDL, as the distance of their version from the job's."""
REARRANGING = frozenset({Action.REORGANIZE_PARTITION, Action.PARTITION_BY, Action.REMOVE_PARTITIONING})
"""The kinds of jobs that go these steps. ADD and COALESCE PARTITION of a hash are of the first kind."""


@dataclass(frozen=True)
class Reorganized:
    """A table without a key whose partitions a DDL of schema `version` rearranged, `old` to `new` (TableInfo's parts).

    commit_ts: rows below `copied_ts` were committed before the copy began, those below `until_ts` before its last step.
    `known`: the steps are those of the rule, and the DDL took effect.
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

    def steps(self, version: int, commit_ts: int, written: int) -> range:
        """The steps at which a transaction of schema `version` may have written; `written`: a partition that it did."""
        if not self.known:
            return range(BEFORE, AFTER + 1)
        last = COPYING if commit_ts < self.copied_ts else AFTER
        if last == AFTER and (commit_ts < self.until_ts or written in _ids(self.old) - _ids(self.new)):
            last = SWITCHED
        return range(max(version - self.version, BEFORE), last + 1)

    def place(self, step: int, row: Values, types: Mapping[str, int]) -> tuple[int, bool | None]:
        """(the id of the partition of `row` at `step`, whether it is one of those rearranged); 0 and None where that
        cannot be determined."""
        mine, other = (self.new, self.old) if step >= SWITCHED else (self.old, self.new)
        own = _ids(mine)
        rearranged = own - _ids(other)
        try:
            found = partition_of(mine, row, types) if mine is not None and own else 0
        except SchemaError:
            return 0, True if rearranged == own else None
        return found, not own or found in rearranged


def reorganized_by(job: DdlJob, commit_ts: int, old: Json | None) -> Reorganized:
    """What `job` with its binlog at `commit_ts` (0: not known) leaves to be known of a table that was `old`."""
    known = job.took_effect and job.type == Action.REORGANIZE_PARTITION
    new = (job.table_info or {}).get("partition") if job.took_effect else None
    # Elsewhere a job is at its FinishedTS, which is behind its last step.
    until = commit_ts if commit_ts < job.finished_ts else job.ready_ts
    return Reorganized(job.schema_version, job.ready_ts, until, known, (old or {}).get("partition"), new)


def _ids(partition: Json | None) -> frozenset[int]:
    return frozenset(definition["id"] for definition in (partition or {}).get("definitions") or ())
